"""Who takes part: each peer as its documentation sets it up, and where it has the means, also tuned by hand."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.apps.work import MAX_BATCH, MAX_WAIT_S, PLACES, WORKERS
from benchmarks.peers.environments import ENVIRONMENTS
from benchmarks.peers.traffic import LISTED, PLAIN, V2, Form
from benchmarks.tools.contestants import ROOT, fastapi, timebound
from benchmarks.tools.load import free_port

OURS = "timebound"
APPS = ROOT / "benchmarks/peers/apps"


@dataclass(frozen=True)
class Start:
    """What a contestant's command is made of: its environment, a folder of its own, and its port."""

    place: Path
    folder: Path
    port: int
    serve_args: Sequence[str] = ()

    def program(self, name: str) -> str:
        """A program of the environment."""
        return str(self.place / "bin" / name)


@dataclass(frozen=True)
class Contestant:
    """One server with one set of settings."""

    name: str
    # Tuned means: with numbers that somebody found by trying, for this very model, machine and deadline.
    is_tuned: bool
    # None: the environment of the benchmark itself.
    environment: str | None
    settings: str
    command: Callable[[Start], list[str]]
    form: Form = PLAIN
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether it is Timebound."""
        return self.environment is None

    @property
    def package(self) -> str:
        """The package whose version is shown."""
        return OURS if self.environment is None else ENVIRONMENTS[self.environment].package


def _timebound(app: str, start: Start) -> list[str]:
    # Nothing that an earlier run has learned may help.
    return [*timebound(app, ["--profiles", "none", *start.serve_args]), "--port", str(start.port)]


def _fastapi(start: Start) -> list[str]:
    return [start.program("python"), *fastapi("ensemble")[1:], "--port", str(start.port)]


def _bounded_fastapi(start: Start) -> list[str]:
    factory = {
        "benchmarks.serving.apps.fastapi_app:create_ensemble": "benchmarks.peers.apps.fastapi_app:create_bounded"
    }
    return [factory.get(word, word) for word in _fastapi(start)]


def _script(app: str, start: Start, *more: str) -> list[str]:
    return [start.program("python"), str(APPS / f"{app}_app.py"), "--port", str(start.port), *more]


def _mosec(start: Start, *more: str) -> list[str]:
    return _script("mosec", start, "--address", "127.0.0.1", *more)


def _bentoml(start: Start) -> list[str]:
    service = "benchmarks.peers.apps.bentoml_app:Ensemble"
    flags = ["--working-dir", str(ROOT), "--host", "127.0.0.1", "--port", str(start.port)]
    return [start.program("bentoml"), "serve", service, *flags]


def _mlserver(start: Start) -> list[str]:
    ports = {"http_port": start.port, "grpc_port": free_port(), "metrics_port": free_port()}
    server = {"host": "127.0.0.1", "parallel_workers": WORKERS, "debug": False, **ports}
    model = {
        "name": "ensemble",
        "implementation": "benchmarks.peers.apps.mlserver_app.Ensemble",
        "max_batch_size": MAX_BATCH,
        "max_batch_time": MAX_WAIT_S,
    }
    (start.folder / "settings.json").write_text(json.dumps(server))
    (start.folder / "model-settings.json").write_text(json.dumps(model))
    return [start.program("mlserver"), "start", str(start.folder)]


def _torchserve(start: Start, queue: int | None = None) -> list[str]:
    model = {"ensemble": {"1.0": _torchserve_model()}}
    lines = [
        f"inference_address=http://127.0.0.1:{start.port}",
        f"management_address=http://127.0.0.1:{free_port()}",
        f"metrics_address=http://127.0.0.1:{free_port()}",
        "load_models=ensemble.mar",
        "disable_token_authorization=true",
        f"models={json.dumps(model)}",
        *([f"job_queue_size={queue}"] if queue else []),
    ]
    (start.folder / "config.properties").write_text("\n".join(lines))
    archive = ["--model-name", "ensemble", "--version", "1.0", "--handler", str(APPS / "torchserve_app.py"), "--force"]
    serve = ["--start", "--foreground", "--ncs", "--model-store", str(start.folder)]
    # Made anew at each start; it takes no time worth counting.
    return [
        "/bin/sh",
        "-c",
        f"cd {start.folder} && {start.program('torch-model-archiver')} {' '.join(archive)} --export-path . "
        f"&& exec {start.program('torchserve')} {' '.join(serve)} --ts-config config.properties",
    ]


def _torchserve_model() -> dict[str, object]:
    return {
        "defaultVersion": True,
        "marName": "ensemble.mar",
        "minWorkers": WORKERS,
        "maxWorkers": WORKERS,
        "batchSize": MAX_BATCH,
        "maxBatchDelay": int(MAX_WAIT_S * 1000),
        "responseTimeout": 120,
    }


_BATCHING = f"{WORKERS} workers, batches of up to {MAX_BATCH}, wait {MAX_WAIT_S * 1000:.0f} ms"
_NO_TRACKING = {"BENTOML_DO_NOT_TRACK": "True"}

CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(
            OURS,
            False,
            None,
            "tb.ensemble of the three files, deadline 250 ms, nothing else set, no profile",
            lambda start: _timebound("anytime", start),
        ),
        Contestant(
            "timebound-single",
            False,
            None,
            "the three networks as one model that cannot leave one out; deadline 250 ms, no profile",
            lambda start: _timebound("single", start),
        ),
        Contestant("fastapi", False, "fastapi", f"{WORKERS} processes, def endpoint, no batches", _fastapi),
        Contestant("litserve", False, "litserve", _BATCHING, lambda start: _script("litserve", start)),
        Contestant(
            "bentoml",
            False,
            "bentoml",
            f"{WORKERS} workers, batchable, up to {MAX_BATCH}, max_latency_ms 60000 (default)",
            _bentoml,
            LISTED,
            _NO_TRACKING,
        ),
        Contestant("mosec", False, "mosec", f"{_BATCHING}, timeout 3 s and capacity 1024 (defaults)", _mosec),
        Contestant(
            "ray",
            False,
            "ray",
            f"{WORKERS} replicas, @serve.batch of up to {MAX_BATCH}, wait {MAX_WAIT_S * 1000:.0f} ms, "
            f"max_ongoing_requests {4 * MAX_BATCH}",
            lambda start: _script("ray", start),
        ),
        Contestant("mlserver", False, "mlserver", f"{_BATCHING}, V2 protocol", _mlserver, V2),
        Contestant("torchserve", False, "torchserve", f"{_BATCHING}, job_queue_size 100 (default)", _torchserve),
        Contestant(
            "pytriton", False, "pytriton", f"{_BATCHING}, V2 protocol", lambda start: _script("pytriton", start), V2
        ),
        Contestant(
            "fastapi-tuned",
            True,
            "fastapi",
            f"{WORKERS} processes, one thread each, 503 when {PLACES} are under way in a process",
            _bounded_fastapi,
        ),
        Contestant(
            "litserve-tuned",
            True,
            "litserve",
            f"{_BATCHING}, timeout 150 ms, restart_workers, fast_queue",
            lambda start: _script("litserve", start, "--tuned"),
        ),
        Contestant(
            "bentoml-tuned",
            True,
            "bentoml",
            f"{WORKERS} workers, batchable, up to {MAX_BATCH}, max_latency_ms 250",
            _bentoml,
            LISTED,
            {**_NO_TRACKING, "BENCH_BENTOML_LATENCY_MS": "250"},
        ),
        Contestant(
            "mosec-tuned",
            True,
            "mosec",
            f"{_BATCHING}, timeout 250 ms, capacity 24",
            lambda start: _mosec(start, "--timeout", "250", "--capacity", "24"),
        ),
        Contestant(
            "ray-tuned",
            True,
            "ray",
            f"as ray, max_ongoing_requests and max_queued_requests {MAX_BATCH}, request_timeout_s 0.25",
            lambda start: _script("ray", start, "--tuned"),
        ),
        Contestant(
            "torchserve-tuned",
            True,
            "torchserve",
            f"{_BATCHING}, job_queue_size 8",
            lambda start: _torchserve(start, 8),
        ),
        Contestant(
            "pytriton-tuned",
            True,
            "pytriton",
            f"{_BATCHING}, queue of 12, rejects after 100 ms in it",
            lambda start: _script("pytriton", start, "--tuned"),
            V2,
        ),
    )
}

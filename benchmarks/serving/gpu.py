"""An ensemble of five EfficientNet-B0 on a GPU, asked over HTTP by a client on the same machine, and what limits it.

Parts, in the order they run: `ceiling` (plain torch, all networks in one CUDA graph), `device` (the server's own code
without the server), `serve` (so many requests under way), `first_minute` (0.8 of what was reached, from the first
second after ready), `overload` (1.5 times it), `resnet18`, `compile`, and for finding out
`strict`, `inductor` and `texts`.

Each part runs in processes of its own, prints its figures when it has them, and writes them to --json then; a part
that fails says so and the next one runs. The exit code is 1 if a bar does not hold or a part failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bars import Bar, judge, zero
from benchmarks.tools.gpu_load import Seen, Target, closed, open_loop
from benchmarks.tools.gpu_networks import jpegs
from timebound.lab.load.processes import process_tree, stat_of

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 0.25
CLIENTS = 6
BARS = (
    Bar("gpu_c512_rps", at_least=3760),
    Bar("gpu_c256_ratio", at_least=0.85),
    Bar("gpu_c1_ms", at_most=4.0),
    *zero("gpu_first_minute_late", "gpu_first_minute_killed", "gpu_compiled_after_ready"),
    Bar("gpu_in_time_1.5", at_least=0.98),
    Bar("gpu_members_1.5", at_least=3.0),
    Bar("gpu_ready_s", at_most=60.0),
    Bar("resnet18_c512_rps", at_least=6000),
    Bar("device_p95_over_predicted", at_most=1.05),
    Bar("compiled_c512_rps", at_least=5000),
    Bar("compiled_second_ready_s", at_most=60.0),
)


class Serving:
    """A server under test and what it said."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, ready_s: float) -> None:
        self.process, self.port, self.log, self.ready_s = process, port, log, ready_s

    def metrics(self) -> dict[str, float]:
        """Every number it tells."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def workers_lost(self) -> float:
        return sum(value for name, value in self.metrics().items() if name.startswith("timebound_worker_deaths_total"))

    def cores_s(self) -> dict[str, float]:
        """Processor time so far, by process: who is busy when nothing else is the limit."""
        spent: dict[str, float] = {}
        for place, pid in enumerate(process_tree(self.process.pid)):
            with suppress(OSError, IndexError):
                command = _command(pid).split(b"\0")
                module = next((part.decode() for part in command if part.startswith(b"timebound.")), "gateway")
                user, system = stat_of(pid)[11:13]
                spent[f"{place}:{module}"] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        return spent

    def target(self) -> Target:
        return Target(self.port, "/pictures", BODIES, "image/jpeg", 1.0)


BODIES = jpegs(64)


class Bench:
    """The parts, and the figures so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.figures: dict[str, Any] = {}
        self.reached = 0.0
        self.kernels = Path(tempfile.mkdtemp(prefix="gpu-kernels-"))
        """Where compiled networks are kept: empty at first."""

    def note(self, **figures: Any) -> None:
        """Figures, at once: on the screen and in the file."""
        self.figures.update(figures)
        for name, value in figures.items():
            print(f"    {name}: {value}", flush=True)
        if self.options.json:
            self.options.json.write_text(json.dumps(self.figures, indent=2) + "\n")

    # ------------------------------------------------------------------ without a server

    def bare(self, part: str, *more: str, prefix: str = "") -> None:
        """Run a part of `gpu_bare` and take its figures."""
        options = self.options
        command = [sys.executable, "-m", "benchmarks.tools.gpu_bare", part, "--device", options.device]
        command += ["--net", options.net, "--max-batch", str(options.max_batch), *more]
        with subprocess.Popen(command, cwd=ROOT, env=_environment({}), stdout=subprocess.PIPE, text=True) as process:
            timer = _Killer(process, options.part_limit)
            assert process.stdout is not None
            for line in process.stdout:
                try:
                    told = json.loads(line)
                except ValueError:
                    print(f"    {line.rstrip()}", flush=True)
                    continue
                self.note(**{f"{prefix}{name}": value for name, value in told.items()})
            timer.cancel()

    def ceiling(self) -> None:
        self.bare("ceiling", "--repeats", "20")

    def device(self) -> None:
        self.bare("device", "--seconds", str(self.options.seconds / 4), prefix="device_")

    # ------------------------------------------------------------------ over HTTP

    @contextmanager
    def serving(self, environment: Mapping[str, str] | None = None) -> Iterator[Serving]:
        """The app, ready."""
        options, log = self.options, Path(tempfile.mkstemp(prefix="gpu-", suffix=".log")[1])
        port = 8100 + os.getpid() % 800
        command = [
            sys.executable,
            "-m",
            "timebound",
            "serve",
            "benchmarks/serving/apps/gpu_app.py",
            "--port",
            str(port),
        ]
        command += ["--profiles", "none", *options.serve.split()]
        env = {"GPU_NET": options.net, "GPU_DEVICE": options.device, "GPU_MAX_BATCH": str(options.max_batch)}
        env |= {"GPU_TRACES": str(options.traces)} if options.traces else {}
        begin = time.perf_counter()
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=_environment({**env, **(environment or {})}),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait(process, port, begin)
            serving = Serving(process, port, log, time.perf_counter() - begin)
            print(f"    ready after {serving.ready_s:.1f} s", flush=True)
            yield serving
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(8)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            lines = log.read_text(errors="replace").splitlines()
            if len(lines) > 2 * options.log_lines:
                lines = [*lines[: options.log_lines], "...", *lines[-options.log_lines :]]
            for line in lines:
                print(f"    | {line[:400]}", flush=True)

    def _wait(self, process: subprocess.Popen[bytes], port: int, begin: float) -> None:
        while time.perf_counter() - begin < self.options.ready_limit:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}")
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return
            time.sleep(0.02)
        for trace in sorted(self.options.traces.iterdir()) if self.options.traces else ():
            print(trace.read_text(errors="replace")[-6000:], flush=True)
        raise RuntimeError("the server was not ready in time")

    def under_way(self, serving: Serving, count: int, name: str) -> Seen:
        """A closed loop: its median and rate go on record."""
        seen = closed(serving.target(), count, self.options.seconds, CLIENTS)
        print(f"    c={count}: {seen}", flush=True)
        rate, p50, p99 = round(seen.rps), round(seen.percentile_ms(0.5), 2), round(seen.percentile_ms(0.99), 2)
        self.note(**{f"{name}_c{count}_rps": rate, f"{name}_c{count}_p50_ms": p50, f"{name}_c{count}_p99_ms": p99})
        self.note(**{f"{name}_c{count}_failed": seen.total - seen.statuses[200]})
        return seen

    def serve(self) -> None:
        """Everything that one server can be asked, the first minute first."""
        with self.serving() as serving:
            if "first_minute" in self.options.only:
                self._first_minute(serving)
            self.note(gpu_ready_s=round(serving.ready_s, 1))
            for count in self.options.under_way:
                seen = self.under_way(serving, count, "gpu")
                self.reached = max(self.reached, seen.rps)
            if "gpu_c1_p50_ms" in self.figures:
                self.note(gpu_c1_ms=self.figures["gpu_c1_p50_ms"])
            self.note(gpu_workers_lost=serving.workers_lost())
            self.note(device_p95_over_predicted=_bound(serving.metrics(), "timebound_device_prediction_ratio", 0.95))
            self._telling(serving)
            if "overload" in self.options.only:
                self._overloaded(serving)
            self._hand_killed(serving)
        ceiling = self.figures.get("ceiling_128_rps")
        if ceiling and "gpu_c256_rps" in self.figures:
            self.note(gpu_c256_ratio=round(self.figures["gpu_c256_rps"] / ceiling, 3))

    def _hand_killed(self, serving: Serving) -> None:
        """One of the processes that prepare dies in the middle: what it costs."""
        hands = [pid for pid in process_tree(serving.process.pid) if b"workers.hand" in _command(pid)]
        if hands:
            timer = threading.Timer(1.0, os.kill, (hands[0], signal.SIGKILL))
            timer.start()
            seen = closed(serving.target(), 256, 2.5, CLIENTS)
            timer.join()
            print(f"    a hand killed, c=256: {seen}", flush=True)
            self.note(gpu_hand_killed_failed=seen.total - seen.statuses[200])

    def first_minute(self) -> None:
        if "serve" not in self.options.only:  # which begins with it
            with self.serving() as serving:
                self._first_minute(serving)

    def _first_minute(self, serving: Serving) -> None:
        rate, seconds = 0.8 * self.figures.get("ceiling_128_rps", self.options.rate), self.options.minute
        target = Target(serving.port, "/pictures", BODIES, "image/jpeg", DEADLINE_S)
        seen = open_loop(target, rate, seconds, CLIENTS)
        print(f"    {rate:.0f}/s for {seconds:g} s: {seen}", flush=True)
        self.note(
            gpu_first_minute_late=seen.late + seen.total - seen.statuses[200],
            gpu_first_minute_killed=serving.workers_lost(),
            gpu_first_minute_full_share=round(seen.members[max(seen.members, default=0)] / max(1, seen.total), 4),
            gpu_compiled_after_ready=serving.log.read_text(errors="replace").count("are not captured"),
            gpu_first_minute_p99_ms=round(seen.percentile_ms(0.99), 1),
        )

    def overload(self) -> None:
        if "serve" not in self.options.only:  # which has had its server overloaded already
            with self.serving() as serving:
                closed(serving.target(), 256, 2.0, CLIENTS)
                self._overloaded(serving)

    def _overloaded(self, serving: Serving) -> None:
        rate = 1.5 * self._rate()
        target = Target(serving.port, "/pictures", BODIES, "image/jpeg", DEADLINE_S)
        seen = open_loop(target, rate, self.options.seconds, CLIENTS)
        print(f"    {rate:.0f}/s: {seen}", flush=True)
        share = round(seen.in_time / max(1, seen.total), 4)
        self.note(**{"gpu_in_time_1.5": share, "gpu_members_1.5": round(seen.mean_members, 2)})
        self._telling(serving)

    def resnet18(self) -> None:
        with self.serving({"GPU_NET": "resnet18"} if self.options.net != "small" else {}) as serving:
            closed(serving.target(), 512, 1.0, CLIENTS)
            before = serving.cores_s()
            self.under_way(serving, 512, "resnet18")
            spent = {name: seconds - before.get(name, 0.0) for name, seconds in serving.cores_s().items()}
            self.note(resnet18_cores={name: round(each / self.options.seconds, 2) for name, each in spent.items()})
            self._telling(serving)

    def compile(self) -> None:
        """A first start compiles, the second finds the kernels on disk."""
        for turn, counts in (("first", (512,)), ("second", (1,))):
            with self.serving({"GPU_COMPILE": "1", "TORCHINDUCTOR_CACHE_DIR": str(self.kernels)}) as serving:
                self.note(**{f"compiled_{turn}_ready_s": round(serving.ready_s, 1)})
                for count in counts:
                    self.under_way(serving, count, "compiled")

    def strict(self) -> None:
        self.bare("strict")

    def inductor(self) -> None:
        for turn in ("cold", "warm"):
            self.bare("inductor", prefix=f"{turn}_")

    def texts(self) -> None:
        self.bare("greedy")
        self.bare("encoding")

    def _rate(self) -> float:
        """What the server reached in this run, or is said to have reached in one before."""
        return self.reached or float(self.options.rate)

    def _telling(self, serving: Serving) -> None:
        """Sums of its own metrics: where the time of a request goes."""
        told = serving.metrics()
        for name, value in sorted(told.items()):
            if name.startswith(
                ("timebound_batch_ends", "timebound_batch_rows", "timebound_device", "timebound_worker_cpu")
            ) and ("bucket" not in name):
                print(f"    {name} {value:.6g}", flush=True)


def _bound(told: Mapping[str, float], name: str, share: float) -> float:
    """The bound of a histogram's bucket below which this share of what it saw lies."""
    buckets = {
        float(key.partition('le="')[2].partition('"')[0]): count
        for key, count in told.items()
        if key.startswith(f"{name}_bucket")
    }
    most = max(buckets.values(), default=0.0)
    bound = min((bound for bound, count in buckets.items() if most and count >= share * most), default=0.0)
    return bound if isfinite(bound) else 1000.0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class _Killer:
    """Ends a process that takes too long."""

    def __init__(self, process: subprocess.Popen[str], limit_s: float) -> None:
        self._timer = threading.Timer(limit_s, process.kill)
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()


PARTS = ("ceiling", "device", "serve", "first_minute", "overload", "resnet18", "compile", "strict", "inductor", "texts")
USUAL = PARTS[:7]


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1", **more}


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(USUAL), help=f"parts: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="2 s for each measurement, 10 for the first minute")
    parser.add_argument("--json", type=Path, help="where to write the figures, after each part")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each measurement")
    parser.add_argument("--minute", type=float, default=60.0, help="seconds of the first minute")
    parser.add_argument("--part-limit", type=float, default=240.0, help="seconds after which a part is ended")
    parser.add_argument("--limit", type=float, default=460.0, help="seconds after which no further part begins")
    parser.add_argument("--under-way", default="512,256,1,64", help="requests under way in `serve`")
    parser.add_argument("--rate", type=float, default=3500.0, help="capacity, where `serve` does not run before")
    parser.add_argument("--serve", default="--slots 2", help="options of the server")
    parser.add_argument("--net", default="efficientnet_b0", help="or resnet18, small")
    parser.add_argument("--device", default="cuda", help="or host, where there is no GPU")
    parser.add_argument("--max-batch", type=int, default=128)
    parser.add_argument("--ready-limit", type=float, default=240.0, help="seconds that a server may take to be ready")
    parser.add_argument("--traces", type=Path, help="folder for what the threads do of a server that is not ready")
    parser.add_argument("--log-lines", type=int, default=6, help="of the server's log, from its begin and its end")
    options = parser.parse_args()
    options.under_way = [int(count) for count in options.under_way.split(",")]
    if options.quick:
        options.seconds, options.minute = 2.0, 10.0
    return options


def main() -> int:
    options = read_options()
    bench, begin, failed = Bench(options), time.perf_counter(), []
    for name in options.only.split(","):
        spent = time.perf_counter() - begin
        if spent > options.limit:
            print(f"{name}: left out, {spent:.0f} s are over", flush=True)
            continue
        print(f"{name} (after {spent:.0f} s)", flush=True)
        part: Callable[[], None] = getattr(bench, name)
        try:
            part()
        except Exception:
            failed.append(name)
            print(traceback.format_exc(), flush=True)
    numbers = {name: value for name, value in bench.figures.items() if isinstance(value, int | float)}
    is_partial = not set(USUAL) <= set(options.only.split(","))
    code = judge("gpu.py", numbers, BARS, options.quick, is_partial=is_partial)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return code or (1 if failed else 0)


if __name__ == "__main__":
    sys.exit(main())

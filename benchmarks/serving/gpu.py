"""An ensemble of five EfficientNet-B0 on a GPU, asked over HTTP by a client on the same machine, and what limits it.

Parts, in the order they run: `ceiling` (plain torch, all networks in one CUDA graph), `device` (the server's own code
without the server), `serve` (so many requests under way), `first_minute` (0.8 of what was reached, from the first
second after ready), `overload` (1.5 times it), `resnet18`, `compile`, and for finding out
`strict`, `inductor` and `texts`.

Each part runs in processes of its own, prints its figures when it has them, and writes them to --json then; a part
that fails or takes too long says so and the next one runs. The exit code is 1 if a bar does not hold, a part that was
chosen has no figure for one, or a part failed. --rehearse is for machines without a GPU: the same on the stand-in,
where only the figures' being there counts.
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bars import Bar, judge, zero
from benchmarks.tools.gpu_load import Seen, Target, closed, open_loop
from benchmarks.tools.gpu_networks import jpegs
from benchmarks.tools.gpu_serving import Killer, Serving, bound_of, command_of
from benchmarks.tools.pauses_told import bare_clocks, longest_ms, notes, tell
from timebound.lab.load.processes import process_tree

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 0.25
CLIENTS = 6
BARS_OF: Mapping[str, tuple[Bar, ...]] = {
    "serve": (
        Bar("gpu_c512_rps", at_least=3760),
        Bar("gpu_c1_ms", at_most=4.0),
        Bar("gpu_ready_s", at_most=60.0),
        Bar("device_p95_over_predicted", at_most=1.05),
        *zero("gpu_hand_killed_failed", "gpu_worker_killed_unanswered"),
    ),
    "ceiling serve": (
        Bar("gpu_c256_ratio", at_least=0.85),
        Bar("gpu_c1_over_bare_ms", at_most=1.5),
    ),
    "first_minute": zero("gpu_first_minute_late", "gpu_first_minute_killed", "gpu_compiled_after_ready"),
    "overload": (Bar("gpu_in_time_1.5", at_least=0.98), Bar("gpu_members_1.5", at_least=3.0)),
    "resnet18": (Bar("resnet18_c512_rps", at_least=6000),),
    "compile": (Bar("compiled_c512_rps", at_least=5000), Bar("compiled_second_ready_s", at_most=60.0)),
    "texts": (Bar("greedy_gain_1", at_least=1.0), Bar("encoding_strangers", at_most=0)),
}
"""By the parts that a figure is from."""
BARS = tuple(bar for bars in BARS_OF.values() for bar in bars)


BODIES = jpegs(64)


def _target(serving: Serving, deadline_s: float = 1.0) -> Target:
    return Target(serving.port, "/pictures", BODIES, "image/jpeg", deadline_s)


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
            timer = Killer(process, options.part_limit)
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

    def versions(self) -> None:
        """What all figures depend on."""
        driver = Path("/proc/driver/nvidia/version")
        told = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", driver.read_text()) if driver.is_file() else None
        self.note(driver=told.group() if told else "none", python=platform.python_version())
        self.bare("versions")

    def device(self) -> None:
        self.bare("device", "--seconds", str(self.options.seconds / 4), prefix="device_")

    # ------------------------------------------------------------------ over HTTP

    @contextmanager
    def serving(self, environment: Mapping[str, str] | None = None) -> Iterator[Serving]:
        """The app, ready."""
        options, log = self.options, Path(tempfile.mkstemp(prefix="gpu-", suffix=".log")[1])
        port = 8100 + os.getpid() % 800
        pauses = Path(tempfile.mkdtemp(prefix="gpu-pauses-"))
        command = [sys.executable, "benchmarks/tools/pauses.py", str(pauses), "serve"]
        command += ["benchmarks/serving/apps/gpu_app.py", "--port", str(port)]
        command += ["--profiles", "none", *options.serve.split()]
        env = {"GPU_NET": options.net, "GPU_DEVICE": options.device, "GPU_MAX_BATCH": str(options.max_batch)}
        env |= {"GPU_TRACES": str(options.traces)} if options.traces else {"GPU_PAUSES": str(pauses)}
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
            serving = Serving(process, port, log, time.perf_counter() - begin, pauses)
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
        seen = closed(_target(serving), count, self.options.seconds, CLIENTS)
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
            self.note(device_p95_over_predicted=bound_of(serving.metrics(), "timebound_device_prediction_ratio", 0.95))
            serving.tell_sums()
            if "overload" in self.options.only:
                self._overloaded(serving)
            self._hand_killed(serving)
            self._worker_killed(serving)
        told = self.figures
        if told.keys() >= {"ceiling_128_rps", "gpu_c256_rps"}:
            self.note(gpu_c256_ratio=round(told["gpu_c256_rps"] / told["ceiling_128_rps"], 3))
        if told.keys() >= {"ceiling_1_ms", "decode_ms", "gpu_c1_ms"}:
            bare_ms = told["ceiling_1_ms"] + told["decode_ms"]
            self.note(gpu_c1_over_bare_ms=round(told["gpu_c1_ms"] - bare_ms, 3))

    def _hand_killed(self, serving: Serving) -> None:
        """One of the processes that prepare dies in the middle: what it costs."""
        hands = [pid for pid in process_tree(serving.process.pid) if b"workers.hand" in command_of(pid)]
        if hands:
            timer = threading.Timer(1.0, os.kill, (hands[0], signal.SIGKILL))
            timer.start()
            seen = closed(_target(serving), 256, 2.5, CLIENTS)
            timer.join()
            print(f"    a hand killed, c=256: {seen}", flush=True)
            self.note(gpu_hand_killed_failed=seen.total - seen.statuses[200])

    def _worker_killed(self, serving: Serving) -> None:
        """The process that feeds the GPU dies in the middle: each request is answered, with what can be, in time."""
        workers = [pid for pid in process_tree(serving.process.pid) if b"timebound.workers.process" in command_of(pid)]
        timer = threading.Timer(1.0, os.kill, (workers[0], signal.SIGKILL))
        timer.start()
        seen = closed(_target(serving), 64, 2.5, CLIENTS)
        timer.join()
        print(f"    the worker killed, c=64: {seen}", flush=True)
        self.note(gpu_worker_killed_unanswered=seen.statuses[0] + seen.late)

    def first_minute(self) -> None:
        if "serve" not in self.options.only:  # which begins with it
            with self.serving() as serving:
                self._first_minute(serving)

    def _first_minute(self, serving: Serving) -> None:
        rate, seconds = 0.8 * self.figures.get("ceiling_128_rps", self.options.rate), self.options.minute
        target = _target(serving, DEADLINE_S)
        seen = self._open_loop(serving, target, rate, seconds, "gpu_first_minute")
        self.note(
            gpu_first_minute_late=seen.late + seen.total - seen.statuses[200],
            gpu_first_minute_killed=serving.workers_lost(),
            gpu_first_minute_full_share=round(seen.members[max(seen.members, default=0)] / max(1, seen.total), 4),
            gpu_compiled_after_ready=serving.unprepared(),
            gpu_first_minute_p99_ms=round(seen.percentile_ms(0.99), 1),
        )

    def _open_loop(self, serving: Serving, target: Target, rate: float, seconds: float, name: str) -> Seen:
        """So many requests a second; and when answers were late, and what stood still meanwhile."""
        since = time.monotonic()
        with bare_clocks(serving.pauses):
            seen = open_loop(target, rate, seconds, CLIENTS)
        until = time.monotonic()
        print(f"    {rate:.0f}/s for {seconds:g} s: {seen}", flush=True)
        for line in tell(serving.pauses, seen.troubles, since, until):
            print(f"      {line}", flush=True)
        longest = longest_ms(notes(serving.pauses), since, until) | {"client": round(1e3 * seen.pause_s, 1)}
        self.note(**{f"{name}_longest_pause_ms": longest})
        return seen

    def overload(self) -> None:
        if "serve" not in self.options.only:  # which has had its server overloaded already
            with self.serving() as serving:
                closed(_target(serving), 256, 2.0, CLIENTS)
                self._overloaded(serving)

    def _overloaded(self, serving: Serving) -> None:
        rate = 1.5 * self._rate()
        target = _target(serving, DEADLINE_S)
        seen = self._open_loop(serving, target, rate, self.options.seconds, "gpu_overload")
        share = round(seen.in_time / max(1, seen.total), 4)
        self.note(**{"gpu_in_time_1.5": share, "gpu_members_1.5": round(seen.mean_members, 2)})
        serving.tell_sums()

    def resnet18(self) -> None:
        if self.options.device != "host":
            self.bare("ceiling", "--net", "resnet18", "--members", "1", "--repeats", "5", prefix="resnet18_")
        with self.serving({"GPU_NET": "resnet18"} if self.options.net != "small" else {}) as serving:
            closed(_target(serving), 512, 1.0, CLIENTS)
            before = serving.cores_s()
            self.under_way(serving, 512, "resnet18")
            spent = {name: seconds - before.get(name, 0.0) for name, seconds in serving.cores_s().items()}
            self.note(resnet18_cores={name: round(each / self.options.seconds, 2) for name, each in spent.items()})
            serving.tell_sums()

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
        if self.figures.keys() >= {"greedy_plain_1_ms", "greedy_captured_1_ms"}:
            self.note(greedy_gain_1=round(self.figures["greedy_plain_1_ms"] / self.figures["greedy_captured_1_ms"], 2))

    def _rate(self) -> float:
        """What the server reached in this run, or is said to have reached in one before."""
        return self.reached or float(self.options.rate)


PARTS = ("ceiling", "device", "serve", "first_minute", "overload", "resnet18", "compile", "strict", "inductor", "texts")
USUAL = PARTS[:7]
REHEARSED = ("serve", "first_minute", "overload", "texts")


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
    parser.add_argument("--part-limit", type=float, default=200.0, help="seconds after which a part is ended")
    parser.add_argument("--limit", type=float, default=460.0, help="seconds after which the whole is at its end")
    parser.add_argument("--under-way", default="512,256,1,64", help="requests under way in `serve`")
    parser.add_argument("--rate", type=float, default=3500.0, help="capacity, where `serve` does not run before")
    parser.add_argument("--serve", default="--slots 2 --max-per-address 4096", help="options of the server")
    parser.add_argument("--net", default="efficientnet_b0", help="or resnet18, small")
    parser.add_argument("--device", default="cuda", help="or host, where there is no GPU")
    parser.add_argument("--max-batch", type=int, default=128)
    parser.add_argument("--ready-limit", type=float, default=240.0, help="seconds that a server may take to be ready")
    parser.add_argument("--traces", type=Path, help="folder for what the threads do of a server that is not ready")
    parser.add_argument("--log-lines", type=int, default=6, help="of the server's log, from its begin and its end")
    parser.add_argument("--rehearse", action="store_true", help="on the stand-in for a GPU, as short as can be")
    options = parser.parse_args()
    if options.rehearse:
        options.device, options.net, options.max_batch, options.rate = "host", "small", 4, 20.0
        options.quick, options.under_way, options.part_limit = True, "512,1", 120.0
        options.only = ",".join(name for name in REHEARSED if name in options.only.split(","))
    options.only = options.only.split(",")
    options.under_way = [int(count) for count in options.under_way.split(",")]
    if options.quick:
        options.seconds, options.minute = 2.0, 2.0 if options.rehearse else 10.0
    return options


def _run(bench: Bench, name: str, limit_s: float) -> bool:
    """Whether a part came to its end; one that takes longer than this is broken off."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"{name} took longer than {limit_s:.0f} s")

    part: Callable[[], None] = getattr(bench, name)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        part()
    except Exception:
        print(traceback.format_exc(), flush=True)
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return True


def missing(parts: Collection[str], figures: Collection[str]) -> list[str]:
    """The bars of these parts for which there is no figure."""
    chosen = [bars for needs, bars in BARS_OF.items() if set(needs.split()) <= set(parts)]
    return [bar.name for bars in chosen for bar in bars if bar.name not in figures]


def main() -> int:
    options = read_options()
    bench, begin, failed = Bench(options), time.perf_counter(), []
    for name in ("versions", *options.only):
        left = options.limit - (time.perf_counter() - begin)
        print(f"{name} (after {options.limit - left:.0f} s)", flush=True)
        if left < 1 or not _run(bench, name, min(left, options.part_limit)):
            failed.append(name)
    numbers = {name: value for name, value in bench.figures.items() if isinstance(value, int | float)}
    without = missing(options.only, numbers)
    for what, names in (("failed, or no time was left", failed), ("chosen, and not measured", without)):
        if names:
            print(f"{what}: {', '.join(names)}", flush=True)
    code = 0 if options.rehearse else judge("gpu.py", numbers, BARS, options.quick, is_partial=True)
    return code or (1 if failed or without else 0)


if __name__ == "__main__":
    sys.exit(main())

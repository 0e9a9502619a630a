"""Sends bad input to a real server with several models: no 500, no hang, no growth.

Three parts: requests made from /openapi.json by Schemathesis, which also checks that every answer is a described one;
bytes on connections, by kind; frames to the reader of the wire between gateway and workers. The exit code is 1 after a
fault, or if the server's memory grew by more than 48 MiB.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, finish, say
from benchmarks.tools.inputs import HTTP_KINDS, frames, http_inputs
from benchmarks.tools.load import HOST, free_port
from benchmarks.tools.processes import Server
from timebound.errors import WireError
from timebound.workers.wire import FrameReader

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "tests" / "models" / "many.py"
READ_TIMEOUT_S = 2
AT_ONCE = 32
ANSWER_S = 0.05
"""How long an answer is waited for; most bad input is never a whole request, so there is none."""
GROWTH_MIB = 48.0
"""More than this over the whole run is a leak: allocators keep some, and the first requests load code."""
BARS = (*zero("faults"), Bar("growth_mib", at_most=GROWTH_MIB))

EXAMPLES = """\
examples:
  python benchmarks/serving/fuzz.py --quick                        about 20 s
  python benchmarks/serving/fuzz.py --count 100000 --json fuzz.json
  python benchmarks/serving/fuzz.py --seed 7 --skip-schema
"""


@dataclass
class Seen:
    """What came of the inputs."""

    sent: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    growth_mib: float = 0.0
    seconds: float = 0.0


async def _send(port: int, kind: str, data: bytes, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    received = b""
    try:
        writer.write(data)
        async with asyncio.timeout(ANSWER_S):
            while chunk := await reader.read(1 << 16):
                received += chunk
    except (TimeoutError, OSError):
        pass
    finally:
        writer.close()
    seen.sent[kind] += 1
    for status in re.findall(rb"^HTTP/1\.1 (\d{3})", received, re.M):
        seen.statuses[status.decode()] += 1
    if b"HTTP/1.1 500" in received:
        seen.faults.append(f"500 for {kind}: {data[:2000]!r}")


async def _flood(port: int, inputs: Sequence[tuple[str, bytes]], seen: Seen) -> None:
    waiting = iter(inputs)

    async def client() -> None:
        for kind, data in waiting:
            await _send(port, kind, data, seen)

    async with asyncio.TaskGroup() as clients:
        for _ in range(AT_ONCE):
            clients.create_task(client())


def metrics(port: int) -> dict[str, float]:
    """The server's own numbers; raises an OSError if it does not answer."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def is_right(port: int) -> bool:
    """Whether a good request is answered as ever."""
    body = json.dumps({"any": "thing"}).encode()
    question = urllib.request.Request(f"http://{HOST}:{port}/predictions/anything", body, {"Content-Type": "text/json"})
    try:
        with urllib.request.urlopen(question, timeout=20) as answer:
            return bool(json.loads(answer.read()) == {"any": "thing"})
    except OSError:
        return False


def settle(port: int, seen: Seen) -> None:
    """Nothing may be left over once slow clients have been turned away."""
    end = time.monotonic() + READ_TIMEOUT_S + 15
    while time.monotonic() < end:
        now = metrics(port)
        left = {name: now[f"timebound_{name}"] for name in ("requests_pending", "requests_queued", "held_bytes")}
        if not any(left.values()) and now["timebound_connections_open"] <= 1:
            break
        time.sleep(0.1)
    else:
        seen.faults.append(f"left over when all clients had gone: {left}, {now['timebound_connections_open']} open")
    for name, value in now.items():
        if name.startswith("timebound_requests_total") and 'status="500"' in name and value:
            seen.faults.append(f"counted by the server: {name} {value:g}")
    if not is_right(port):
        seen.faults.append("a good request is not answered any more")


def try_http(server: Server, port: int, count: int, seed: int) -> Seen:
    """Send so many inputs over connections of their own."""
    seen, began = Seen(), time.perf_counter()
    inputs = http_inputs(seed)
    warm_up = count // 10
    uvloop.run(_flood(port, list(islice(inputs, warm_up)), seen))
    before = server.pss_mib()
    left = count - warm_up
    while left:
        part = list(islice(inputs, min(left, 5000)))
        uvloop.run(_flood(port, part, seen))
        left -= len(part)
        if not is_right(port):
            seen.faults.append("a good request is not answered any more")
            break
    settle(port, seen)
    seen.growth_mib = server.pss_mib() - before
    seen.seconds = time.perf_counter() - began
    return seen


def try_frames(count: int, seed: int) -> Seen:
    """Feed the reader that the gateway uses: it knows a frame, waits for more, or raises WireError."""
    seen, began = Seen(), time.perf_counter()
    for data in islice(frames(seed), count):
        seen.sent["frame"] += 1
        reader = FrameReader()
        try:
            for start in range(0, len(data), 97):
                reader.feed(data[start : start + 97])
        except WireError:
            seen.statuses["WireError"] += 1
        except Exception as error:
            seen.faults.append(f"{type(error).__name__} for the frame {data[:500]!r}")
    seen.seconds = time.perf_counter() - began
    return seen


def try_schema(port: int, examples: int, seed: int) -> Seen:
    """Let Schemathesis ask what /openapi.json allows, and what it does not; answers must be described there.

    Refusals of valid data are not faults here (a key used with two bodies, no picture in the field), nor are
    deadlines missed with limits of a microsecond: what counts is in the server's own metrics.
    """
    began = time.perf_counter()
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"http://{HOST}:{port}/openapi.json"]
    checks = "positive_data_acceptance,negative_data_rejection,not_a_server_error"
    options = ["--checks", "all", "--exclude-checks", checks, "--phases", "examples,coverage,fuzzing", "--no-color"]
    options += ["-n", str(examples), "--seed", str(seed), "--request-timeout", "20", "--exclude-path", "/v1/reload"]
    with tempfile.TemporaryDirectory() as folder:  # it leaves a cache where it runs
        run = subprocess.run([*command, *options], capture_output=True, text=True, check=False, cwd=folder)
    seen = Seen(seconds=time.perf_counter() - began)
    found = re.search(r"(\d+) generated", run.stdout)
    seen.sent["schemathesis"] = int(found[1]) if found else 0
    if run.returncode or not found:
        seen.faults.append(f"schemathesis: {run.stdout[-6000:]}{run.stderr[-2000:]}")
    settle(port, seen)
    return seen


def start(port: int) -> Server:
    """A server with models of several kinds, not yet started; little is kept, so that growth shows."""
    options = ["--store-memory", "1MB", "--read-timeout", str(READ_TIMEOUT_S), "--workers", "1"]
    command = [sys.executable, "-m", "timebound.cli", "serve", str(APP), "--port", str(port), *options]
    return Server("timebound", command, {"TIMEBOUND_PROFILES": "none"}, lambda: is_right(port))


def run(options: argparse.Namespace) -> dict[str, Seen]:
    """All parts against one server."""
    parts: dict[str, Seen] = {}
    port = free_port()
    with start(port) as server:
        if not options.skip_schema:
            say("requests made from /openapi.json")
            parts["schema"] = try_schema(port, 15 if options.quick else 200, options.seed)
        say(f"{options.count} inputs on connections")
        parts["http"] = try_http(server, port, options.count, options.seed)
        say(f"{options.count // 10} frames")
        parts["frames"] = try_frames(options.count // 10, options.seed)
        said = [line for line in server.complaints() if "Traceback" in line]
        parts["http"].faults += [f"in the server's log: {line[:1500]}" for line in said[:5]]
    return parts


def report(parts: dict[str, Seen]) -> str:
    """What was sent and what came of it."""
    lines = []
    for name, seen in parts.items():
        rows = [f"  {kind:24} {count:>8}" for kind, count in sorted(seen.sent.items())]
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(seen.statuses.items()))
        grown = f", memory {seen.growth_mib:+.1f} MiB" if name == "http" else ""
        lines += [f"{name}: {sum(seen.sent.values())} in {seen.seconds:.0f} s{grown}", *rows]
        lines += [f"  answers: {statuses}"] if statuses else []
        lines += [f"  FAULT {fault}" for fault in seen.faults]
    return "\n".join(lines)


def figures(parts: dict[str, Seen]) -> dict[str, float]:
    """The flat object for --json."""
    inputs = {f"{name}_inputs": sum(seen.sent.values()) for name, seen in parts.items()}
    faults = sum(len(seen.faults) for seen in parts.values())
    return {**inputs, "kinds": len(HTTP_KINDS), "faults": faults, "growth_mib": parts["http"].growth_mib}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few thousand inputs")
    parser.add_argument("--count", type=int, help="inputs on connections; default 100000, with --quick 2000")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip-schema", action="store_true", help="leave Schemathesis out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat JSON object")
    options = parser.parse_args(arguments)
    options.count = options.count or (2000 if options.quick else 100_000)
    try:
        parts = finish("fuzz", lambda: run(options))
    except Failed as failure:
        return failure.code
    print(report(parts))
    return conclude("fuzz", options, figures(parts), BARS)


if __name__ == "__main__":
    sys.exit(main())

"""The load generator wrk, as a second opinion and as the cheaper client for the fastest servers."""

import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

SCRIPT = """
wrk.method = "POST"
wrk.body = [[%s]]
wrk.headers["Content-Type"] = "application/json"
function done(summary, latency, requests)
    local e = summary.errors
    local failed = e.connect + e.read + e.write + e.status + e.timeout
    local form = '\\n{"n": %%d, "us": %%d, "p50": %%d, "p99": %%d, "max": %%d, "errors": %%d}\\n'
    local p50, p99 = latency:percentile(50), latency:percentile(99)
    io.write(string.format(form, summary.requests, summary.duration, p50, p99, latency.max, failed))
end
"""


@dataclass(frozen=True)
class Seen:
    """What wrk printed; `cpu` is its own use in cores. Errors are not in `rps`."""

    rps: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    errors: int
    cpu: float


def run_wrk(url: str, concurrency: int, seconds: int, body: str, before: Sequence[str] = ()) -> Seen:
    """One thread that keeps `concurrency` POSTs under way; it reads statuses only. `before` goes before the command."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT % body)
        script.flush()
        flags = ["-t", "1", "-c", str(concurrency), "-d", f"{seconds}s", "-s", script.name]
        run = subprocess.run([*before, "wrk", *flags, url], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    seen = json.loads(run.stdout.strip().splitlines()[-1])
    return Seen(
        rps=(seen["n"] - seen["errors"]) / (seen["us"] / 1e6),
        p50_ms=seen["p50"] / 1000,
        p99_ms=seen["p99"] / 1000,
        max_ms=seen["max"] / 1000,
        errors=seen["errors"],
        cpu=cpu / (time.perf_counter() - began),
    )

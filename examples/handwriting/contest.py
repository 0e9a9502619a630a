"""The load of the contest: parallel clients, one second per attempt, two re-sends; who was late, what was lost.

    python examples/handwriting/contest.py                            10 clients for two minutes
    python examples/handwriting/contest.py --server-cores 0           the server on one core only
    python examples/handwriting/contest.py --port 8000                a server or a stack that runs already
    python examples/handwriting/contest.py --json contest.json        the figures as JSON, too

Ends with its bars: no attempt late, no request lost, at most 300 MiB of memory (PSS). The exit code is 1 if one
does not hold.

Every tenth request is sent once more although it was answered, as if the answer had been lost on the way: it must come
back the same, not computed again.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bars import Bar, Figures, conclude, zero
from benchmarks.tools.processes import Server

from timebound.demo.app import LABELS, SAMPLES
from timebound.lab.load.processes import ForeignLoad

LIMIT_S = 1.0
ATTEMPTS = 3
COUNTED = (
    "requests",
    "attempts",
    "late",
    "lost",
    "refused",
    "full",
    "partial",
    "fallback",
    "right",
    "sent again",
    "same again",
)
BARS = (*zero("late", "lost"), Bar("pss_mib", at_most=300))


class Client(threading.Thread):
    """Sends one request after another until the time is over, and counts what came of them."""

    def __init__(self, port: int, end: float, number: int) -> None:
        super().__init__(name=f"client-{number}")
        self.counts: Counter[str] = Counter()
        self.took: list[float] = []
        self._port, self._end, self._turn = port, end, number
        self._connection = self._connect()

    def run(self) -> None:
        while time.monotonic() < self._end:
            self._turn += 1
            sample = SAMPLES[self._turn % len(SAMPLES)]
            self._request(sample["image"], sample["title"] if sample["title"] in LABELS else "isnull")
        self._connection.close()

    def _request(self, image: str, right: str) -> None:
        body = {"esun_uuid": uuid.uuid4().hex, "image": image}
        self.counts["requests"] += 1
        for left in range(ATTEMPTS - 1, -1, -1):
            reply = self._attempt({**body, "esun_timestamp": int(time.time()), "retry": left})
            if reply is not None:
                break
        else:
            self.counts["lost"] += 1
            return
        answer, headers = reply
        self.counts[headers.get("Timebound-Quality", "no quality")] += 1
        self.counts["right"] += answer["answer"] == right
        if self._turn % 10 == 0:
            again = self._attempt({**body, "esun_timestamp": int(time.time()), "retry": 0})
            self.counts["sent again"] += 1
            self.counts["same again"] += again is not None and again[0] == answer

    def _attempt(self, body: dict[str, Any]) -> tuple[Any, Any] | None:
        """The answer, or None if it did not come within a second."""
        began = time.monotonic()
        self.counts["attempts"] += 1
        try:
            self._connection.request("POST", "/inference", json.dumps(body), {"content-type": "application/json"})
            response = self._connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException):
            self.counts["late"] += 1
            self._connection.close()
            self._connection = self._connect()
            return None
        took = time.monotonic() - began
        self.took.append(took)
        if took > LIMIT_S:
            self.counts["late"] += 1
        if response.status != 200:
            self.counts["refused"] += 1
            return None
        return answer, response.headers

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT_S)


def run(port: int, clients: int, seconds: float) -> tuple[Counter[str], list[float], float]:
    """All counts together, every answer's seconds, and how long it all took."""
    began = time.monotonic()
    crowd = [Client(port, began + seconds, 1000 * number) for number in range(clients)]
    for client in crowd:
        client.start()
    for client in crowd:
        client.join()
    took = time.monotonic() - began
    return sum((client.counts for client in crowd), Counter()), [s for client in crowd for s in client.took], took


def main() -> None:
    """Start the server, load it, say what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--server-cores", help="as for taskset; default: all")
    parser.add_argument("--port", type=int, help="of a server that runs already; default: one is started")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    chosen = parser.parse_args()
    chosen.quick, chosen.is_partial = False, chosen.port is not None  # the memory of another's server is not measured
    raise SystemExit(conclude("contest", chosen, load(chosen), BARS))


def load(chosen: argparse.Namespace) -> Figures:
    """The figures of a run, told as well."""
    others = ForeignLoad()
    if chosen.port:
        return report(*run(chosen.port, chosen.clients, chosen.seconds), f"{chosen.clients} clients")
    port = _free_port()
    app = Path(__file__).with_name("app.py")
    command = [sys.executable, "-m", "timebound.cli", "serve", str(app), "--port", str(port)]
    if chosen.server_cores:
        command = ["taskset", "-c", chosen.server_cores, *command]
    quiet = {"TIMEBOUND_PROFILES": "none"}
    with Server("timebound", command, quiet, lambda: _is_ready(port)) as server:
        counted = run(port, chosen.clients, chosen.seconds)
        memory, processes = server.pss_mib(), server.process_count()
    cores = chosen.server_cores or f"all {os.cpu_count()}"
    beside = f"server on cores: {cores}; others used {others.cores():.1f} cores"
    figures = report(*counted, f"{chosen.clients} clients, {beside}")
    print(f"memory (PSS) of {processes} processes: {memory:.0f} MiB")
    return {**figures, "pss_mib": round(memory, 1), "processes": processes}


def report(counts: Counter[str], took: list[float], seconds: float, whose: str) -> Figures:
    """Say what happened."""
    in_time = sum(s <= LIMIT_S for s in took)
    print(f"{whose}, {seconds:.0f} s")
    print(f"answers in time: {in_time} of {counts['attempts']}, {in_time / seconds:.1f} requests/s")
    times = _times(took)
    print("milliseconds: " + ", ".join(f"{name.removesuffix('_ms')} {ms:.1f}" for name, ms in times.items()))
    print(f"late: {counts['late']}, lost: {counts['lost']}, refused: {counts['refused']}")
    qualities = ", ".join(f"{name}: {counts[name]}" for name in ("full", "partial", "fallback"))
    print(f"{qualities}; right: {counts['right']} of {counts['requests']}")
    print(f"sent again: {counts['sent again']}, of them answered the same: {counts['same again']}")
    return {
        "seconds": round(seconds, 1),
        "in_time": in_time,
        "requests_per_s": round(in_time / seconds, 1),
        **times,
        **{name.replace(" ", "_"): counts[name] for name in COUNTED},
    }


def _times(took: list[float]) -> dict[str, float]:
    """How long answers took, in milliseconds; nothing where there are hardly any."""
    if len(took) < 2:
        return {}
    ranks = statistics.quantiles(took, n=1000)
    longest = {"median_ms": ranks[499], "p99_ms": ranks[989], "longest_ms": max(took)}
    return {name: round(s * 1000, 1) for name, s in longest.items()}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main()

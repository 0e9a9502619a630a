"""How the client itself fares: its share of a core, how late its event loop is, and whether it is to blame."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from timebound.clock import Clock
from timebound.lab.load.alarm import Alarm
from timebound.lab.load.histogram import Histogram

TICK_S = 0.02
# From here on the client's own pace is what is measured.
BUSY_CPU = 0.9
# Sending later than this is told; in an open loop it is part of every latency.
LATE_S = 0.005


class Health:
    """Watches the client's process from its making to `figures`."""

    def __init__(self, alarm: Alarm, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now()
        self._cpu = time.process_time()
        self._lags = Histogram()
        alarm.every(TICK_S, lambda due: self._lags.add(clock.now() - due))

    def figures(self, sending: Histogram) -> dict[str, float]:
        """`sending` is how long after its time the client came to each request."""
        took = max(1e-9, self._clock.now() - self._began)
        flat = {
            "client_cpu": (time.process_time() - self._cpu) / took,
            "client_loop_lag_p99_ms": self._lags.quantile(0.99) * 1000,
            "client_loop_lag_max_ms": self._lags.longest * 1000,
            "client_send_lag_p99_ms": sending.quantile(0.99) * 1000,
            "client_send_lag_max_ms": sending.longest * 1000,
        }
        return {name: round(value, 4) for name, value in flat.items()}


def warnings(figures: dict[str, float], is_open_loop: bool) -> list[str]:
    """What a reader must know before trusting the figures of a level."""
    found = []
    cpu, lag = figures["client_cpu"], figures["client_send_lag_p99_ms"]
    if cpu >= BUSY_CPU:
        found.append(
            f"the client is the bottleneck: it used {cpu:.2f} of its one core; the server may be faster than this. "
            "Run several at once, from other machines if the server is on this one"
        )
    if is_open_loop and lag > LATE_S * 1000 and lag > 0.05 * figures["p99_ms"]:
        found.append(
            f"the client sent late: 1 in 100 requests left {lag:.1f} ms after its time or later, and latencies count "
            "from that time; lower the rate, or free a core for the client (--realtime helps where it is allowed)"
        )
    if figures["held_back"]:
        found.append(
            f"{figures['held_back']:,.0f} requests waited in the client because all its connections were busy; "
            "--connections allows more, if the server takes them"
        )
    if figures["failed"] > 0.01 * figures["requests"]:
        failed = figures["failed"] / figures["requests"]
        found.append(f"{failed:.1%} of the requests got no answer; the percentiles are of the answers only")
    return found


@contextmanager
def undisturbed(realtime: bool) -> Iterator[None]:
    """Run without pauses for garbage, and if `realtime` ahead of other processes where that is allowed.

    A client on another machine would not wait for the server's cores. Ordinary priorities do not help: a busy process
    is interrupted for one of them only every few milliseconds, and that would be taken for the server's lateness.
    """
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    gc.collect()
    gc.disable()
    if realtime:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)
        gc.enable()


def raise_file_limit() -> None:
    """Take all the open files that the system allows: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

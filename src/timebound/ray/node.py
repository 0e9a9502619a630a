"""Whether a Ray node is set up as Timebound needs it; each finding is one sentence that names the variable to set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
OPTIMIZED = "RAY_SERVE_THROUGHPUT_OPTIMIZED"
NICENESS = "RAY_worker_niceness"
_TRUE = ("1", "true", "True")


NICE_CURE = f"start Ray on each node with {NICENESS}=0"


def findings(environment: Mapping[str, str]) -> Iterator[str]:
    """What costs time on this node; of its niceness the gateway speaks itself."""
    if environment.get(HAPROXY) != "1":
        yield (
            "requests come through Ray's Python proxy, which adds milliseconds to each and carries few of them; "
            f"start Ray on each node with {HAPROXY}=1"
        )
    if environment.get(OPTIMIZED) not in _TRUE:
        yield (
            "requests change threads inside the replica, which costs a third of the throughput; "
            f"start Ray on each node with {OPTIMIZED}=1"
        )

"""The few fixtures that tests of several rooms share."""

from __future__ import annotations

import signal
from collections.abc import Hashable, Iterator
from pathlib import Path

import pytest
from tests.live.gate import Gate
from tests.order import dealt
from tests.redis_cluster import ClusterServers
from tests.redis_server import RedisServer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; what tests start inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several workers run the tests, the long ones come first."""
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = dealt(items, _long_group, workers)


def _long_group(item: pytest.Item) -> Hashable | None:
    """Long ones of one file run in one worker, and so do those of one name: two Rays at once would be too much."""
    marker = item.get_closest_marker("long")
    return (marker.args or item.path) if marker is not None else None


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A closed gate: a model that is told its path waits there until the test opens it."""
    with Gate(tmp_path / "gate") as closed:
        yield closed


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A Redis for tests that only use it; those that hurt it start their own. Choose a namespace nobody else has."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterServers]:
    """A cluster of three for tests that only use it; those that hurt it start their own."""
    with ClusterServers() as servers:
        yield servers

"""The few fixtures that tests of several rooms share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.gate import Gate
from tests.redis_cluster import ClusterServers
from tests.redis_server import RedisServer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; what tests start inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)


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

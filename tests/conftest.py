"""The few fixtures that tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.gate import Gate
from tests.redis_server import RedisServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try a live test a second time when it fails, and say so at the end: a shared machine may stand still.

    What a test shows of a real server has to hold; what fails twice in a row does not.
    """
    for item in items:
        if item.get_closest_marker("live") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1))


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

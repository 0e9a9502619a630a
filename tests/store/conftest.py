"""Stores to test, and coroutines as tests."""

from __future__ import annotations

import inspect
import os
from typing import Any

import pytest
import uvloop
from tests.redis_cluster import ClusterServers
from tests.redis_server import RedisServer
from tests.store.gateways import Gateways, MemoryGateways, RedisGateways


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests here in a loop of their own, the kind the server has."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    uvloop.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def namespace() -> str:
    """A part of the shared Redis that is this test's alone."""
    return f"test-{os.urandom(6).hex()}"


@pytest.fixture(params=["memory", "redis", "cluster"])
def gateways(request: pytest.FixtureRequest, namespace: str) -> Gateways:
    """Two gateways that share a store; with memory, which is one process's, both are the same."""
    if request.param == "memory":
        return MemoryGateways()
    if request.param == "cluster":
        servers: ClusterServers = request.getfixturevalue("cluster")
        return RedisGateways(servers.url, namespace)
    redis: RedisServer = request.getfixturevalue("redis")
    return RedisGateways(redis.url, namespace)

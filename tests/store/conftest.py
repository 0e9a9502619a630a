"""Stores to test, and coroutines as tests."""

from __future__ import annotations

import inspect
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
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


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for localhost and its key, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(["openssl", "req", "-x509", *kind, *names, *files], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def tls_cluster(certificate: Path) -> Iterator[ClusterServers]:
    """A cluster of three that speaks nothing but TLS, for tests that only use it."""
    with ClusterServers(certificate=certificate) as servers:
        yield servers


@pytest.fixture(params=["memory", "redis", "cluster", "tls_cluster"])
def gateways(request: pytest.FixtureRequest, namespace: str) -> Gateways:
    """Two gateways that share a store; with memory, which is one process's, both are the same."""
    if request.param == "memory":
        return MemoryGateways()
    if request.param in ("cluster", "tls_cluster"):
        servers: ClusterServers = request.getfixturevalue(request.param)
        return RedisGateways(servers.url, namespace)
    redis: RedisServer = request.getfixturevalue("redis")
    return RedisGateways(redis.url, namespace)

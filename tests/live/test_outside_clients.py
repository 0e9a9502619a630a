"""Clients and load tools of others, as they come from their packages, get right answers from a server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from benchmarks.clients.files import served_files
from benchmarks.clients.roster import CLIENTS, Ports, told
from benchmarks.tools.contestants import ROOT
from tests.live.serving import Serving
from tests.outside import absent

pytestmark = pytest.mark.live

ABSENT = ("not installed", "does not run here")


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    files = served_files(tmp_path_factory.mktemp("files"))
    with ExitStack() as both:
        echo = both.enter_context(Serving(ROOT / "benchmarks/serving/apps/echo_app.py", "--workers", "1"))
        twice = both.enter_context(Serving(files, "--workers", "1", "--grpc-port", "0"))
        grpc_port = int(str(twice.wait_for_line("listening for gRPC")["at"]).rpartition(":")[2])
        yield Ports(echo.port, twice.port, grpc_port)
        assert "Traceback" not in echo.said + twice.said


@pytest.mark.parametrize("name", CLIENTS)
def test_an_outside_client_is_answered_rightly(name: str, ports: Ports) -> None:
    client = CLIENTS[name]
    try:
        result = told(name, client, ports, may_install=True)
    except (subprocess.CalledProcessError, OSError) as error:
        absent(f"its packages cannot be had: {error}")
    if result.startswith(ABSENT):
        absent(result)
    assert result == "right"


def test_a_client_that_gets_wrong_answers_is_told_apart(ports: Ports) -> None:
    swapped = Ports(ports.twice, ports.echo, ports.twice_grpc)  # the echo is asked for at a server that has none
    assert told("ab", CLIENTS["ab"], swapped, may_install=False).startswith(("wrong", *ABSENT))

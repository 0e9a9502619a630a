"""The operator's calls: by the socket or with the token; from no address, through no proxy, on no page's behalf."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from fnmatch import fnmatch
from pathlib import Path

import pytest
from starlette.routing import Route
from tests.live.serving import MODELS, Serving, eventually
from tests.redis_server import free_port

from timebound.admission.keys import hash_of
from timebound.cli import main
from timebound.config import of_options
from timebound.http.front import HttpFront
from timebound.operator_socket import find
from timebound.server import Server

pytestmark = pytest.mark.live

OPEN = [
    "GET /livez", "GET /readyz", "GET /metrics", "GET /ping", "GET /openapi.json", "GET /api-description", "OPTIONS /",
    "GET /", "GET /docs", "GET /live", "GET /history",
    # What is served, and what it is like
    "GET /v1/models", "GET /v1/models/{model}", "GET /v1/models/{model}/versions/{version}",
    "GET /v1/models/{model}/samples", "GET /models", "GET /models/{model}", "GET /models/{model}/{version}",
    "GET /v2", "GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models/stats", "* /v2/repository/index",
    "GET /v2/models/{model}", "GET /v2/models/{model}/versions/{version}", "GET /v2/models/{model}*/ready",
    "GET /v2/models/{model}*/config", "GET /v2/models/{model}*/stats",
    # What was answered under a key, for who knows that, and whether it was right
    "GET /v1/results/{model}/{key:path}", "POST /v1/feedback/{model}/{key:path}",
    # Where a model is asked, or would be
    "* /predictions/{model}", "* /predictions/{model}/{version}", "* /explanations/{model}",
    "* /explanations/{model}/{version}", "* /invocations", "* /models/{model}/invoke", "POST /v2/models/{model}*/infer",
    "POST /v1/models/{model}*:predict", "* /v1/models/{model}*:classify", "* /v1/models/{model}*:regress",
    "* /v1/models/{model}*:explain",
]  # fmt: skip
"""What anyone may call; everything else that the server answers itself is the operator's."""

NAMES = {"model": "echo", "key": "k", "version": "1", "id": "r1", "place": "echo", "which": "body"}
"""What stands in a path for each of its parts."""


def operators() -> list[tuple[str, str]]:
    """Every call that the server itself has and that is not open: new ones too."""

    async def listed() -> list[tuple[str, str]]:
        (front,) = Server(MODELS / "echo.py", of_options({"profiles": "none"}), [HttpFront]).fronts
        assert isinstance(front, HttpFront)
        routes = [route for route in front.app.own.routes if isinstance(route, Route)]
        return [(method, route.path) for route in routes for method in sorted(route.methods or ()) if method != "HEAD"]

    return [call for call in asyncio.run(listed()) if not any(fnmatch(written(*call), each) for each in OPEN)]


def written(method: str, path: str) -> str:
    return f"{method} {path.rstrip('/') or '/'}"


def filled(path: str) -> str:
    return re.sub(r"{(\w+)(:\w+)?}", lambda part: NAMES[part[1]], path)


@pytest.fixture(autouse=True)
def without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIMEBOUND_ADMIN_TOKEN", raising=False)


def test_what_a_plain_proxy_on_this_machine_passes_on_is_never_the_operators() -> None:
    with Serving(MODELS / "echo.py", "--workers", "1") as serving:
        assert serving.http.post("/inference", json={"value": 1, "id": "k"}).status_code == 200
        # Given a proxy that says nothing of itself: a local peer, a local name, HTTP/1.1 or 1.0
        calls = [(method, filled(path)) for method, path in operators()]
        assert {("POST", "/v1/reload"), ("DELETE", "/v1/results/echo/k"), ("PUT", "/models/echo")} <= set(calls)
        for method, path in calls:
            answer = serving.http.request(method, path)
            assert answer.status_code == 403, (method, path)
            with serving.wire() as wire:
                wire.send(f"{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{serving.port}\r\n\r\n".encode())
                assert wire.read().status == 403, (method, path)
        # Then nothing is lost, and the operator on this machine still may, without any setting
        assert len(serving.operator.get("/v1/results").json()["results"]) == 1
        assert main(["results", "ls", "--url", serving.url]) == 0
        assert main(["reload", "--url", serving.url]) == 0
        assert main(["results", "clear", "echo", "k", "--url", serving.url]) == 0


def test_the_socket_takes_nothing_that_was_passed_on_and_is_gone_with_the_server() -> None:
    with Serving(MODELS / "echo.py", "--workers", "1") as serving:
        for headers in ({"X-Forwarded-For": "10.1.2.3"}, {"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            answer = serving.operator.post("/v1/reload", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert find(serving.port) is not None
        serving.signal(signal.SIGTERM)
        assert serving.wait() == 0
        assert find(serving.port) is None


def test_with_keys_too_the_operator_on_this_machine_needs_no_token(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[shop]\nhash = "{hash_of(b"tb_shop")}"\n')
    with Serving(MODELS / "echo.py", "--workers", "1", "--keys", keys) as serving:
        answer = serving.http.post("/inference", json={"value": 1, "id": "k"}, headers={"X-API-Key": "tb_shop"})
        assert answer.status_code == 200
        listed = serving.operator.get("/v1/results").json()["results"]
        assert [entry["key"] for entry in listed] == ["shop:k"]
        assert "timebound_client_requests_total" in serving.operator.get("/metrics").text
        assert serving.operator.post("/inference", json={"value": 1}).status_code == 401, "a model wants a key"


def test_with_a_token_there_is_no_other_way() -> None:
    environment = {"TIMEBOUND_ADMIN_TOKEN": "t0ken"}
    with Serving(MODELS / "echo.py", "--workers", "1", environment=environment) as serving:
        assert find(serving.port) is None
        assert main(["reload", "--url", serving.url]) == 2
        assert main(["reload", "--url", serving.url, "--admin-token", "t0ken"]) == 0


def test_a_server_that_was_killed_leaves_the_next_on_its_port_its_place() -> None:
    port = free_port()
    for _ in range(2):
        with Serving(MODELS / "echo.py", "--workers", "1", port=port) as serving:
            assert serving.operator.post("/v1/reload").json() == {"models": ["echo"]}
            os.kill(serving.pid, signal.SIGKILL)
            eventually(lambda: find(port) is None, "a socket nobody answers")

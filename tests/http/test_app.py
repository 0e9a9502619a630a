"""The whole gateway in one process: HTTP in, a runner in the place of a worker, HTTP out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator, validate
from prometheus_client.parser import text_string_to_metric_families
from starlette.staticfiles import StaticFiles

import timebound as tb
from timebound.catalogue import Catalogue
from timebound.clock import ManualClock
from timebound.errors import SetupError
from timebound.events import Events
from timebound.http.admin import Admin
from timebound.http.app import App
from timebound.http.control import Control
from timebound.http.intake import Intake
from timebound.http.results import Results
from timebound.http.routes import Routes
from timebound.observe.metrics import Metrics
from timebound.requests.dispatcher import Dispatcher
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import Batch
from timebound.store.base import Store
from timebound.store.memory import Memory
from timebound.types import Outcome
from timebound.versions import Traffic
from timebound.workers.runner import Runner
from timebound.workers.warmup import warm_up


class Doubler(tb.Model):
    path = "/twice"
    key = "id"
    deadline = 10.0

    class Request(tb.Struct):
        id: str
        n: int

    def prepare(self, request: Any) -> Any:
        if request.n < 0:
            raise tb.BadInput("n is below zero", field="n")
        return request.n

    def infer(self, batch: Any) -> Any:
        return [2 * n for n in batch]

    def finish(self, output: Any, request: Any) -> Any:
        return {"id": request.id, "twice": output}


class Reverser(tb.Model):
    deadline = 10.0

    def infer(self, batch: Any) -> Any:
        return [body[::-1] for body in batch]


class Gateway:
    """Every room but the processes: batches run in this one, at the next turn of the loop."""

    has_handlers = False

    def __init__(
        self, models: Sequence[tb.Model], *, metrics: Callable[[str], tuple[bytes, str]] | None = None
    ) -> None:
        clock, events = ManualClock(), Events()
        self._runners = {runner.name: runner for runner in (Runner(model, clock) for model in models)}
        self.store: Store = Memory(1_000_000, clock)
        self.catalogue, routes = Catalogue(clock), Routes()
        self.requests = Dispatcher(
            Scheduler(),
            self.catalogue,
            slots=self,
            helper=self,
            clock=clock,
            events=events,
            loop=asyncio.get_running_loop(),
            margin_s=0.0,
            store=self.store,
            wall=lambda: 0.0,
        )
        self.catalogue.listen(self.requests.add_model, self.requests.remove_model)
        self.catalogue.listen(routes.add, lambda name, successor: routes.remove(name))
        self.app = App(
            Intake(self.requests, clock=clock, events=events, cap_s=60.0),
            routes,
            self,
            metrics=metrics or Metrics(events, {"workers_up": ("Workers.", lambda: 1.0)}).render,
            results=Results(self.store, self.requests.is_running, Admin(None)),
            control=Control(self, self.reload, Admin(None)),
        )
        self.catalogue.update([warm_up(runner, clock) for runner in self._runners.values()], {})
        self.requests.slot_up("slot")

    def status(self) -> dict[str, Any]:
        return {"models": [msgspec.to_builtins(info) for info in self.catalogue.models.values()]}

    progress = ""

    def why_not_ready(self) -> str | None:
        return "draining" if self.requests.is_closed else None if self.catalogue.models else "loading"

    async def reload(self) -> list[str]:
        raise SetupError("nothing can be loaded here")

    def traffic(self, model: str) -> Traffic:
        raise SetupError("nothing has versions here")

    async def set_traffic(self, model: str, traffic: Traffic) -> Traffic:
        raise SetupError("nothing has versions here")

    async def roll_back(self, model: str) -> Traffic:
        raise SetupError("nothing has versions here")

    def send(self, slot: Any, batch: Batch, bodies: list[bytes], *, ask_after_s: float, votes: list[int]) -> None:
        asyncio.get_running_loop().call_soon(self._compute, slot, batch, bodies)

    def worker_of(self, slot: Any) -> str:
        return "worker"

    def kill(self, slot: Any) -> None:
        raise AssertionError("nothing hangs here")

    def leave_off(self, slot: Any, batch: Batch, places: list[int]) -> None:
        raise AssertionError("no pieces come here")

    def decide(self, slot: Any, batch: Batch, *, go: bool) -> None:
        raise AssertionError("no ensemble is asked here")

    def size(self, model: str, body: bytes, done: Callable[[float | None], None]) -> None:
        done(None)

    def fallback(self, model: str, body: bytes, done: Callable[[Outcome | None], None]) -> None:
        done(None)

    def _compute(self, slot: Any, batch: Batch, bodies: list[bytes]) -> None:
        report = self._runners[batch.model].run(bodies)
        assert report is not None
        self.requests.report(slot, report)

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://test")


Ask = Callable[[httpx.AsyncClient], Any]


def talk(*asks: Ask, models: Sequence[type[tb.Model]] = (Doubler, Reverser), drain: bool = False) -> list[Any]:
    """What a fresh gateway answers to these, one after another."""

    async def run() -> list[Any]:
        gateway = Gateway([model() for model in models])
        if drain:
            gateway.requests.close()
        async with gateway.client() as client:
            return [await ask(client) for ask in asks]

    return asyncio.run(run())


def get(path: str, **options: Any) -> Any:
    """What a fresh gateway answers to one GET."""
    return talk(lambda client: client.get(path), **options)[0]


def post(path: str, **content: Any) -> Any:
    """What a fresh gateway answers to one POST."""
    return talk(lambda client: client.post(path, **content))[0]


@pytest.mark.parametrize("path", ["/twice", "/predictions/doubler"])
def test_a_typed_model_answers_at_both_its_routes(path: str) -> None:
    answer = post(path, json={"id": "a", "n": 4}, headers={"x-request-id": "r1"})
    assert (answer.status_code, answer.json()) == (200, {"id": "a", "twice": 8})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "r1"
    assert answer.headers["timebound-quality"] == "full"
    assert answer.headers["timebound-batch"] == "1"


def test_a_raw_model_takes_and_gives_bytes() -> None:
    answer = post("/predictions/reverser", content=b"\x01\x02")
    assert (answer.status_code, answer.content) == (200, b"\x02\x01")
    assert answer.headers["content-type"] == "application/octet-stream"


def test_requests_that_come_together_are_answered_each_with_its_own() -> None:
    async def many(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post("/twice", json={"id": str(n), "n": n}) for n in range(-2, 20)))

    (answers,) = talk(many)
    assert [answer.status_code for answer in answers] == [422] * 2 + [200] * 20
    assert [answer.json()["twice"] for answer in answers[2:]] == [2 * n for n in range(20)]


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        ({"content": b""}, 400, "empty_body"),
        ({"content": b"{"}, 400, "malformed_json"),
        ({"json": {"id": "a"}}, 422, "bad_input"),
        ({"json": {"id": "a", "n": -1}}, 422, "bad_input"),
        ({"content": b"n=1", "headers": {"content-type": "text/plain"}}, 415, "unsupported_media_type"),
        ({"json": {"id": "a", "n": 1}, "headers": {"grpc-timeout": "x"}}, 400, "bad_header"),
    ],
)
def test_bad_input_is_a_problem(content: dict[str, Any], status: int, code: str) -> None:
    answer = post("/twice", **content)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_an_unknown_path_tells_where_models_answer() -> None:
    answer = get("/nowhere")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == (
        "nothing is at /nowhere; models answer at: /predictions/doubler, /predictions/reverser, /twice; see /docs"
    )


def test_an_unknown_model_tells_which_there_are() -> None:
    answer = post("/predictions/tripler", json={})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_model")
    assert answer.json()["detail"] == "there is no model 'tripler'; this server has: doubler, reverser"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_a_model_takes_only_posts(method: str) -> None:
    (answer,) = talk(lambda client: client.request(method, "/twice"))
    assert answer.status_code == 405
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_servers_own_pages_take_no_posts() -> None:
    answer = post("/livez")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(("method", "path", "allowed"), [("GET", "/twice", "POST"), ("POST", "/livez", "GET")])
def test_a_method_that_is_not_taken_is_told_which_is(method: str, path: str, allowed: str) -> None:
    # RFC 9110, section 15.5.6: a 405 must carry Allow.
    (answer,) = talk(lambda client: client.request(method, path))
    assert allowed in answer.headers.get("allow", "")


def test_a_server_is_ready_when_it_has_models() -> None:
    assert (get("/readyz").status_code, get("/readyz").json()) == (200, {"status": "ready"})
    loading = get("/readyz", models=())
    assert (loading.status_code, loading.json()) == (503, {"status": "not_ready", "reason": "loading"})


def test_a_server_is_live_while_it_loads_and_while_it_drains() -> None:
    for options in ({}, {"models": ()}, {"drain": True}):
        assert get("/livez", **options).json() == {"status": "live"}


@pytest.mark.parametrize("path", ["/predictions/doubler", "/twice"])
def test_a_model_that_is_still_loading_is_worth_another_try(path: str) -> None:
    (answer,) = talk(lambda client: client.post(path, json={}), models=())
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert answer.headers["retry-after"] == "1"


def test_a_draining_server_is_not_ready_and_takes_nothing_new() -> None:
    ready, answer = talk(
        lambda client: client.get("/readyz"),
        lambda client: client.post("/twice", json={"id": "a", "n": 1}),
        drain=True,
    )
    assert (ready.status_code, ready.json()["reason"]) == (503, "draining")
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    assert answer.headers["retry-after"] == "1"


def test_the_models_are_listed() -> None:
    answer = get("/v1/models")
    assert [model["name"] for model in answer.json()["models"]] == ["doubler", "reverser"]


def test_metrics_are_prometheus_text_that_counts_requests() -> None:
    _, _, answer = talk(
        lambda client: client.post("/twice", json={"id": "a", "n": 1}),
        lambda client: client.post("/twice", content=b"{"),
        lambda client: client.get("/metrics"),
    )
    assert answer.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    counted = {
        (sample.labels["status"], sample.labels["code"]): sample.value
        for sample in families["timebound_requests"].samples
    }
    assert counted == {("200", "ok"): 1.0, ("400", "malformed_json"): 1.0}


def test_the_openapi_document_is_valid_and_has_every_route() -> None:
    document = get("/openapi.json").json()
    validate(document, cls=OpenAPIV31SpecValidator)
    assert {"/twice", "/predictions/doubler", "/predictions/reverser"} <= set(document["paths"])


@pytest.mark.parametrize(("path", "kind"), [("/", "text/html"), ("/docs", "text/html"), ("/ui/app.js", "text/java")])
def test_pages_come_with_headers_that_lock_them_in(path: str, kind: str) -> None:
    answer = get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_first_page_leads_to_the_others() -> None:
    page = get("/").text
    assert [path for path in ("/live", "/history", "/docs", "/metrics") if f'<a href="{path}"' not in page] == []


def test_a_path_longer_than_that_of_any_file_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []

    def get_path(files: StaticFiles, scope: Any) -> str:
        looked_up.append(scope["path"])
        return "nowhere"

    monkeypatch.setattr(StaticFiles, "get_path", get_path)
    assert get("/ui/" + "a/" * 15_000).status_code == 404
    assert looked_up == []
    assert get("/ui/a/b.js").status_code == 404
    assert looked_up == ["/ui/a/b.js"]


def test_the_files_of_the_pages_are_served_and_nothing_above_them() -> None:
    assert get("/ui/style.css").status_code == 200
    for path in ("/ui/../server.py", "/ui/%2e%2e/server.py", "/ui/..%2fserver.py"):
        assert get(path).status_code == 404


def test_something_broken_in_the_server_is_answered_neutrally() -> None:
    def broken(accept: str) -> tuple[bytes, str]:
        raise RuntimeError("secret")

    async def run() -> httpx.Response:
        async with Gateway([], metrics=broken).client() as client:
            return await client.get("/metrics")

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text


def test_samples_of_a_model_are_served_to_who_asks_for_them() -> None:
    class Sampled(Reverser):
        samples = ({"title": "abc", "body": "abc"},)

    found, missing = talk(
        lambda client: client.get("/v1/models/sampled/samples"),
        lambda client: client.get("/v1/models/nobody/samples"),
        models=(Sampled,),
    )
    assert found.json() == {"samples": [{"title": "abc", "body": None, "data": "YWJj", "media": "text/plain"}]}
    assert (missing.status_code, missing.json()["code"]) == (404, "unknown_model")

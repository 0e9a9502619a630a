"""`tb.Client` and `tb.AsyncClient` against real servers: answers, retries, deadlines, connections, TLS."""

from __future__ import annotations

import asyncio
import io
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pytest
from PIL import Image
from tests.live.gate import Gate
from tests.live.rogue import Guest, Rogue, ok
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import post
from tests.models.onnx_files import save_doubler

from timebound import AsyncClient, Client
from timebound.admission.keys import hash_of
from timebound.client import Answer, BadRequest, Busy, DeadlineMissed, NotAllowed, NotFound, Unreachable

pytestmark = pytest.mark.live

SLACK_S = 1.0
"""How late a busy machine may wake whoever waits for a deadline; what is tested for would be far later."""


class Ask(Protocol):
    def __call__(self, urls: list[str], model: str, item: Any, **options: Any) -> Answer[Any]: ...


def ask_blocking(urls: list[str], model: str, item: Any, **options: Any) -> Answer[Any]:
    settings = options.pop("settings", {})
    with Client(*urls, **settings) as client:
        return client.ask(model, item, **options)


def ask_async(urls: list[str], model: str, item: Any, **options: Any) -> Answer[Any]:
    settings = options.pop("settings", {})

    async def asked() -> Answer[Any]:
        async with AsyncClient(*urls, **settings) as client:
            return await client.ask(model, item, **options)

    return asyncio.run(asked())


@pytest.fixture(params=[ask_blocking, ask_async], ids=["blocking", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """One call by a client of its own, of either kind."""
    asked: Ask = request.param
    return asked


@pytest.fixture(scope="module")
def showcase() -> Iterator[Serving]:
    with Serving(MODELS / "showcase.py", "--workers", "1") as serving:
        yield serving


class Counting:
    """A server that writes down what it computes."""

    def __init__(self, serving: Serving, file: Path) -> None:
        self.serving = serving
        self._file = file

    def computed(self) -> Counter[int]:
        """How often each input was computed, the warm-up's zero left out."""
        lines = self._file.read_text().split() if self._file.exists() else []
        return Counter(int(line) for line in lines if line != "0")


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counting]:
    file = tmp_path_factory.mktemp("client") / "computed"
    with Serving(MODELS / "counts.py", "--workers", "1", environment={"COMPUTED": str(file)}) as serving:
        yield Counting(serving, file)


# ---------------------------------------------------------------------- answers


class Mood(msgspec.Struct):
    label: str
    confidence: float


def test_an_answer_is_typed_and_says_how_it_came_about(showcase: Serving, ask: Ask) -> None:
    answer = ask([showcase.url], "mood", {"text": "a good day"}, type=Mood, deadline=20.0, request_id="mine")
    assert answer.value.label == "positive"
    assert isinstance(answer.value, Mood)
    assert (answer.quality, answer.source, answer.members, answer.of_members) == ("full", "computed", 1, 1)
    assert (answer.batch, answer.request_id, answer.attempts, answer.server) == (1, "mine", 1, showcase.url)
    assert 0 < answer.timings.infer < answer.elapsed


def test_votes_come_beside_the_answer(showcase: Serving, ask: Ask) -> None:
    with Client(showcase.url) as client:
        (example,) = [model.example for model in client.models() if model.name == "characters"]
    item = example | {"esun_uuid": f"votes-{ask is ask_async}"}
    answer = ask([showcase.url], "/inference", item, key=None, votes=True, deadline=20.0)
    assert answer.value["answer"] == "一"
    assert [vote["member"] for vote in answer.votes] == ["a", "b", "c"]


def test_bytes_go_as_they_are_and_bytes_come_back(showcase: Serving, ask: Ask) -> None:
    assert ask([showcase.url], "count", b"\x00\xff" * 100_000).value == {"bytes": 200_000, "first": "00"}
    picture = io.BytesIO()
    Image.frombytes("L", (2, 1), bytes([0, 255])).save(picture, "PNG")
    answer = ask([showcase.url], "mirror", picture.getvalue(), content_type="image/png")
    assert Image.open(io.BytesIO(answer.value)).tobytes() == bytes([255, 0])
    with pytest.raises(BadRequest) as raised:
        ask([showcase.url], "mirror", picture.getvalue()[:5], content_type="image/png")
    assert (raised.value.status, raised.value.code) == (422, "bad_input")


def test_arrays_are_sent_to_a_model_file(tmp_path: Path, ask: Ask) -> None:
    with Serving(save_doubler(tmp_path / "doubler.onnx"), "--workers", "1") as serving:
        answer = ask([serving.url], "doubler", {"x": np.array([1.5, 2, 3], np.float32)})
        assert answer.value == {"y": [3.0, 4.0, 6.0]}


def test_what_is_wrong_is_raised_as_what_it_is(showcase: Serving, ask: Ask) -> None:
    with pytest.raises(BadRequest, match="the text is empty") as raised:
        ask([showcase.url], "mood", {"text": ""})
    error = raised.value
    assert (error.code, error.field, error.status, error.attempts) == ("bad_input", "text", 422, 1)
    assert error.request_id
    with pytest.raises(NotFound) as missing:
        ask([showcase.url], "moods", {"text": ""})
    assert missing.value.code == "unknown_model"
    with pytest.raises(BadRequest) as large:
        ask([showcase.url], "count", b"x" * 11_000_000)
    assert (large.value.status, large.value.code) == (413, "body_too_large")


def test_models_and_kept_results_are_read(counting: Counting) -> None:
    with Client(counting.serving.url) as client:
        (counts, contents) = client.models()
        assert (counts.name, counts.key, counts.paths, counts.state) == (
            "counts",
            "id",
            ["/count", "/predictions/counts"],
            "ready",
        )
        assert contents.name == "contents"
        asked = client.ask("counts", {"value": 900}, key="kept/ü")
        kept = client.result("counts", "kept/ü")
        assert (kept.value, kept.source) == (asked.value, "stored")
        with pytest.raises(NotFound) as raised:
            client.result("counts", "never")
        assert raised.value.code == "no_result"


def test_a_result_in_work_is_waited_for_if_there_is_a_deadline(counting: Counting, gate: Gate) -> None:
    with Client(counting.serving.url) as client, ThreadPoolExecutor(2) as pool:
        asked = pool.submit(client.ask, "counts", {"value": 901, "gate": str(gate.path)}, key="slow")
        eventually(lambda: counting.computed()[901], "the request in the model")
        with pytest.raises(Busy) as raised:
            client.result("counts", "slow")
        assert (raised.value.code, raised.value.retry_after) == ("running", 1.0)
        waited = pool.submit(client.result, "counts", "slow", deadline=20.0)
        gate.open()
        assert waited.result().value == asked.result().value


# ---------------------------------------------------------------------- once


def test_a_retry_gets_what_the_first_attempt_began_and_it_is_computed_once(counting: Counting, ask: Ask) -> None:
    value = 100 + (ask is ask_async)
    item = {"value": value, "takes": 1.5}
    answer = ask([counting.serving.url], "counts", item, deadline=20.0, settings={"attempt_timeout": 0.4})
    assert answer.value["value"] == value
    assert answer.source in ("joined", "stored")  # as the last retry came while it ran, or just after
    assert answer.attempts > 1
    assert counting.computed()[value] == 1


def test_a_retry_after_a_lost_answer_gets_the_stored_one(counting: Counting, ask: Ask) -> None:
    value = 200 + (ask is ask_async)
    lost: list[bytes] = []

    def relay(guest: Guest, number: int) -> bool:
        """Pass a request on; the first answer is lost on its way."""
        key = f"Idempotency-Key: lost-{value}"
        with counting.serving.wire() as wire:
            wire.send(post("/count", msgspec.json.decode(rogue.bodies[number - 1]), key))
            answer = wire.read()
        if number == 1:
            lost.append(answer.body)
            return guest.reset()
        return guest.say(ok(answer.body, f"Timebound-Source: {answer.headers['timebound-source']}"))

    with Rogue(relay) as rogue:
        answer = ask([rogue.url], "counts", {"value": value}, deadline=20.0)
    assert (answer.body, answer.source, answer.attempts) == (lost[0], "stored", 2)
    assert rogue.bodies[0] == rogue.bodies[1]
    assert counting.computed()[value] == 1


# ---------------------------------------------------------------------- on time


def elapsed_until(kind: type[Exception], call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.monotonic()
    with pytest.raises(kind) as raised:
        call()
    return time.monotonic() - began, raised.value


def test_a_server_that_misses_the_deadline_says_so_in_time(ask: Ask, gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1") as serving:
        item = {"value": 1, "gate": str(gate.path)}
        took_s, error = elapsed_until(DeadlineMissed, lambda: ask([serving.url], "waits", item, deadline=1.0))
        assert took_s < 1.0 + SLACK_S
        assert error.code in ("deadline_missed", "deadline_unreachable")
        gate.open()


def test_a_server_that_stands_still_or_drips_holds_nobody_beyond_the_deadline(ask: Ask) -> None:
    def drip(guest: Guest, number: int) -> bool:
        for byte in ok(b"x" * 1000):
            guest.say(bytes([byte]))
            time.sleep(0.05)
        return True

    for act in (drip, lambda guest, number: threading.Event().wait(30)):
        with Rogue(act) as rogue:
            took_s, error = elapsed_until(DeadlineMissed, lambda: ask([rogue.url], "any", {}, deadline=0.5))
            assert 0.4 < took_s < 0.5 + SLACK_S
            assert (error.status, error.attempts) == (None, 1)
            assert isinstance(error, TimeoutError)


def test_a_server_that_takes_no_connection_holds_nobody_beyond_the_deadline(ask: Ask) -> None:
    with socket.socket() as deaf, ExitStack() as stack:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(3):  # its queue is full: the kernel answers no more
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        took_s, _ = elapsed_until(DeadlineMissed, lambda: ask([url], "any", {}, deadline=0.5))
        assert 0.4 < took_s < 0.5 + SLACK_S
        with Serving(MODELS / "echo.py", "--workers", "1") as serving:
            for key in ("a", "b", "c", "d"):  # whoever of the two is first for a key
                assert ask([url, serving.url], "echo", {"value": 1}, deadline=2.8, key=key).server == serving.url


def test_a_body_that_is_not_read_holds_nobody_beyond_the_deadline(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        took_s, _ = elapsed_until(DeadlineMissed, lambda: ask([url], "any", bytes(50_000_000), deadline=0.5))
        assert 0.4 < took_s < 0.5 + SLACK_S


# ---------------------------------------------------------------------- not now


def test_a_429_is_tried_again_after_its_retry_after_if_there_is_time(tmp_path: Path, ask: Ask) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[me]\nhash = "{hash_of(b"sesame")}"\nrate = 0.5\nburst = 1\n')
    with Serving(MODELS / "echo.py", "--workers", "1", "--keys", keys) as serving:
        settings = {"api_key": "sesame"}
        assert ask([serving.url], "echo", {"value": 1}, settings=settings).attempts == 1
        took_s, error = elapsed_until(
            Busy, lambda: ask([serving.url], "echo", {"value": 2}, deadline=0.8, settings=settings)
        )
        assert took_s < 0.8
        assert (error.status, error.code, error.attempts) == (429, "rate_limited", 1)
        assert error.retry_after >= 1
        began = time.monotonic()
        answer = ask([serving.url], "echo", {"value": 3}, deadline=20.0, settings=settings)
        assert answer.attempts == 2
        assert time.monotonic() - began >= 1.0
        with pytest.raises(NotAllowed) as raised:
            ask([serving.url], "echo", {"value": 4}, settings={"api_key": "wrong"})
        assert (raised.value.status, raised.value.code) == (401, "unauthorized")
        assert "api_key=" in raised.value.detail
        assert "TIMEBOUND_API_KEY" in raised.value.detail


def test_a_server_that_is_still_loading_is_waited_for(ask: Ask, gate: Gate) -> None:
    loading = Serving(MODELS / "waits.py", environment={"LOAD_GATE": str(gate.path)}, until_ready=False)
    with loading as serving, ThreadPoolExecutor(1) as pool:
        assert serving.http.post("/predictions/waits", json={"value": 1}).status_code == 503
        asked = pool.submit(ask, [serving.url], "waits", {"value": 1}, deadline=20.0)
        time.sleep(0.3)  # it is refused a few times meanwhile
        gate.open()
        answer = asked.result()
        assert answer.value == {"value": 1}
        assert answer.attempts > 1


# ---------------------------------------------------------------------- connections


def test_a_connection_is_used_again_and_one_that_was_closed_costs_no_attempt(ask: Ask) -> None:
    def twice(guest: Guest, number: int) -> bool:
        """Two answers on a connection; the third request finds it closed."""
        served = getattr(guest, "served", 0) + 1
        guest.served = served  # type: ignore[attr-defined]
        return False if served > 2 else guest.say(ok(b"{}", "Content-Type: application/json"))

    with Rogue(twice) as rogue:
        if ask is ask_blocking:
            with Client(rogue.url, retries=0) as client:
                answers = [client.ask("any", {"n": number}) for number in range(6)]
        else:

            async def asked() -> list[Answer[Any]]:
                async with AsyncClient(rogue.url, retries=0) as client:
                    return [await client.ask("any", {"n": number}) for number in range(6)]

            answers = asyncio.run(asked())
        assert [answer.attempts for answer in answers] == [1] * 6
        assert rogue.connections == 3


def test_one_client_serves_many_threads_over_few_connections() -> None:
    def echo(guest: Guest, number: int) -> bool:
        time.sleep(0.005)  # so that many calls are in work at once
        return guest.say(ok(rogue.bodies[number - 1], "Content-Type: application/json"))

    with Rogue(echo) as rogue, Client(rogue.url, connections=4) as client, ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda value: client.ask("any", {"value": value}), range(200)))
        assert [answer.value["value"] for answer in answers] == list(range(200))
        assert 1 < rogue.connections <= 4


def test_a_name_that_nobody_resolves_holds_nobody_beyond_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    silence, real = threading.Event(), socket.getaddrinfo

    def resolve(*where: Any, **more: Any) -> Any:
        if "flags" not in more:  # a plain look at a name, and no number in dots
            silence.wait(20)
        return real(*where, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with Client("http://localhost:1") as client:
        took_s, _ = elapsed_until(DeadlineMissed, lambda: client.ask("any", {}, deadline=0.5))
    silence.set()
    assert 0.4 < took_s < 0.5 + SLACK_S


def test_who_is_cancelled_leaves_and_the_client_goes_on(gate: Gate) -> None:
    async def story(serving: Serving) -> None:
        async with AsyncClient(serving.url) as client:
            item = {"value": 1, "gate": str(gate.path)}
            leaving = asyncio.create_task(client.ask("waits", item, key=None))
            await asyncio.to_thread(eventually, lambda: serving.gauge("requests_pending") == 1, "it is asked")
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            gate.open()
            assert (await client.ask("waits", {"value": 2})).value == {"value": 2}

    with Serving(MODELS / "waits.py", "--workers", "1") as serving:
        asyncio.run(story(serving))


def test_https_is_believed_with_its_authority_and_refused_without(tmp_path: Path, ask: Ask) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    kind = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    named = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-out", str(certificate), "-keyout", str(key)]
    subprocess.run(["openssl", *kind.split(), *named, *files], check=True, capture_output=True)
    with Serving(MODELS / "echo.py", "--workers", "1", "--tls-cert", certificate, "--tls-key", key) as serving:
        url = f"https://127.0.0.1:{serving.port}"
        for settings in ({"ca": certificate}, {"verify": False}):
            assert ask([url], "echo", {"value": 1}, settings=settings).value["value"] == 1
        assert ask([f"https://localhost:{serving.port}"], "echo", {"value": 1}, settings={"ca": certificate})
        with pytest.raises(Unreachable, match=r"not trusted .* give its authority with ca=") as raised:
            ask([url], "echo", {"value": 1}, deadline=20.0)
        assert raised.value.attempts == 1

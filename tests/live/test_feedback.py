"""Words about answers come from strangers: they cost no more memory than is counted, and judge only what there is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.live.serving import MODELS, Serving, eventually, memory_of

from timebound import AsyncClient, BadInput, Client
from timebound.admission.keys import hash_of
from timebound.client import NotFound
from timebound.observe.filter import filter_of
from timebound.observe.history import History
from timebound.requests.identity import MAX_KEY

pytestmark = pytest.mark.live

RIGHT = {"verdict": "right"}
LARGE = 9_900_000
SHOWN = (
    "/v1/live", "/v1/live/past", "/v1/live/decisions", "/v1/live/trace.json", "/v1/live/requests/x", "/v1/history",
    "/v1/history/counts", "/v1/history/minutes", "/v1/history/export", "/v1/history/20261118T200000-0001/1/input",
)  # fmt: skip


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(MODELS / "watched.py", "--workers", "1", "--history", tmp_path_factory.mktemp("kept")) as serving:
        yield serving


@pytest.mark.parametrize("path", ["/v1/feedback/votes/key", "/v1/nothing"])
def test_large_bodies_to_the_servers_own_routes_do_not_stay_in_memory(serving: Serving, path: str) -> None:
    before = memory_of(serving.pid)
    with ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", serving.port), timeout=20))
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE}\r\n\r\n"
            _send(sock, head.encode() + b" " * (LARGE - 1))
            assert sock.recv(100).startswith((b"HTTP/1.1 413", b"HTTP/1.1 404"))
        growth = memory_of(serving.pid) - before
    assert growth < 40_000_000, "one byte of each is missing: whoever waits for it holds the others"
    assert serving.http.post("/v1/feedback/votes/key", json=RIGHT).status_code == 202


def _send(sock: socket.socket, data: bytes) -> None:
    """Send what is taken; who is told early that it is too much need not be rid of all."""
    sock.settimeout(0.2)
    with suppress(TimeoutError, ConnectionError):
        sock.sendall(data)
    sock.settimeout(20)


def test_who_leaves_in_the_middle_of_a_body_costs_no_traceback(serving: Serving) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", serving.port)) as sock:
            sock.sendall(b"POST /v1/feedback/votes/key HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    eventually(lambda: serving.gauge("connections_open") <= 2, "they are gone")
    assert serving.http.post("/v1/feedback/votes/key", json=RIGHT).status_code == 202
    assert "Traceback" not in serving.said


@pytest.mark.parametrize(
    ("path", "code"),
    [("nobody/key", "unknown_model"), ("votes@2/key", "unknown_model"), ("votes/", "bad_input")],
)
def test_only_answers_that_can_be_named_are_judged(serving: Serving, path: str, code: str) -> None:
    assert serving.http.post(f"/v1/feedback/{path}", json=RIGHT).json()["type"] == f"urn:timebound:{code}"


def test_an_answer_under_the_longest_key_there_can_be_is_judged(serving: Serving) -> None:
    longest = {"Idempotency-Key": "k" * MAX_KEY}
    serving.http.post("/votes", json={"x": 1.0}, headers=longest).raise_for_status()
    given = [serving.http.post(f"/v1/feedback/votes/{'k' * length}", json=RIGHT) for length in (MAX_KEY, MAX_KEY + 1)]
    assert [answer.status_code for answer in given] == [202, 422]


def test_with_keys_one_judges_the_answers_of_models_that_the_key_is_for_and_sees_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    ours, theirs = "tb_ours", "tb_theirs"
    table = "".join(f'[{name}]\nhash = "{hash_of(name.encode())}"\n' for name in (ours, theirs))
    keys.write_text(table + 'models = ["votes"]\n')
    kept = tmp_path / "kept"
    with Serving(MODELS / "watched.py", "--workers", "1", "--history", kept, "--keys", keys) as serving:

        def judge(model: str, verdict: str, key: str | None) -> int:
            headers = {} if key is None else {"X-API-Key": key}
            return serving.http.post(f"/v1/feedback/{model}/k", json={"verdict": verdict}, headers=headers).status_code

        for key in (ours, theirs):
            serving.http.post("/votes", json={"x": 1.0, "id": "k"}, headers={"X-API-Key": key}).raise_for_status()
        assert judge("votes", "right", None) == 401
        assert (judge("votes", "right", theirs), judge("takes", "right", theirs)) == (202, 403)
        assert judge("votes", "wrong", ours) == 202
        for path in SHOWN:
            for headers in ({"X-API-Key": ours}, {"Authorization": f"Bearer {ours}"}, {}):
                assert serving.http.get(path, headers=headers).status_code == 403, (path, headers)
        history = History(kept)
        eventually(lambda: len(history.counts(filter_of({}), "verdict")) == 2, "each has a word of its own")


def pass_of(serving: Serving) -> dict[str, str]:
    """What a browser sends to which `timebound live` gave an address."""
    return {"Authorization": f"Bearer {serving.operator.post('/v1/live/pass').json()['pass']}"}


@pytest.mark.parametrize("is_guarded", [False, True])
def test_with_a_pass_one_judges_and_sends_again_what_was_kept(tmp_path: Path, is_guarded: bool) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[ours]\nhash = "{hash_of(b"tb_ours")}"\n')
    kept, more = tmp_path / "kept", ("--keys", keys) if is_guarded else ()
    with Serving(MODELS / "watched.py", "--workers", "1", "--history", kept, *more) as serving:
        ours, looks = {"X-API-Key": "tb_ours"}, pass_of(serving)
        serving.http.post("/votes", json={"x": 3.0, "id": "k"}, headers=ours).raise_for_status()
        found = eventually(lambda: serving.operator.get("/v1/history").json()["outcomes"], "it is written")
        assert serving.http.get("/v1/models", headers=looks).json()["models"]
        place, key = found[0]["place"], found[0]["key"]
        said = serving.http.post(f"/v1/feedback/votes/{key}", json={"verdict": "wrong"}, headers=looks)
        assert said.status_code == 202
        again = serving.http.post(f"/v1/history/{place}/again", headers=looks)
        assert (again.status_code, again.json()["label"]) == (200, "big")
        assert again.headers["timebound-version"] == "1"
        judged = "/v1/history?verdict=wrong"
        (row,) = eventually(lambda: serving.operator.get(judged).json()["outcomes"], "the verdict")
        assert row["key"] == key
        assert len(serving.operator.get("/v1/history").json()["outcomes"]) == 1, "what is sent again is not written"
        assert serving.http.post(f"/v1/history/{place}/again", headers=ours).status_code == 403
        assert serving.http.post("/predictions/votes", json={"x": 1.0}, headers=looks).status_code == (
            401 if is_guarded else 200
        )


def test_both_clients_say_whether_an_answer_was_right(serving: Serving) -> None:
    with Client(serving.url) as client:
        for key in ("mine", "yours"):
            client.ask("votes", {"x": 1.0}, key=key)
        client.feedback("votes", "mine", right=False, label="big")
        with pytest.raises(BadInput, match="label"):
            client.feedback("votes", "mine", right=True, label="big")
        with pytest.raises(NotFound):
            client.feedback("nobody", "mine", right=True)

    async def judge() -> None:
        async with AsyncClient(serving.url) as client:
            await client.feedback("votes", "yours", right=True)

    asyncio.run(judge())

    def verdicts() -> dict[str, tuple[str, str]]:
        rows = serving.operator.get("/v1/history?model=votes").json()["outcomes"]
        return {row["key"]: (row["verdict"], row["right_label"]) for row in rows}

    eventually(lambda: verdicts().get("mine") == ("wrong", "big") and verdicts()["yours"] == ("right", ""), "the words")

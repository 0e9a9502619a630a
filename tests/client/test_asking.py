"""What a client makes of its arguments: addresses, bodies, paths, and sentences for what cannot be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from timebound import AsyncClient, Client
from timebound.client.address import read_address
from timebound.client.asking import Options, encode
from timebound.errors import BadInput, SetupError

URL = "http://host:8000"


def lines(client: Client, **options: Any) -> str:
    asked: Options = options  # type: ignore[assignment]
    return b"".join(client._asked("mood", {}, asked).lines).decode()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("host:8000", "no address of a server"),
        ("ftp://host", "no address of a server"),
        ("http://", "no address of a server"),
        ("http://host:port", "is no URL"),
        ("http://me:secret@host", "give the API key with api_key="),
        ("http://host/?a=1", "more than an address"),
        ("http://host/ä", "more than an address"),
        ("http://host/a b", "more than an address"),
    ],
)
def test_what_is_no_address_is_said_at_once(url: str, sentence: str) -> None:
    with pytest.raises(SetupError, match=sentence):
        Client(url)


def test_an_address_may_have_a_path_and_ports_have_defaults() -> None:
    found = read_address("https://host/models/")
    assert (found.host, found.port, found.is_tls, found.prefix) == ("host", 443, True, "/models")
    assert read_address("http://[::1]:8000").host == "::1"


def test_a_client_needs_a_server_and_sensible_numbers() -> None:
    with pytest.raises(SetupError, match="needs the address of a server"):
        Client()
    with pytest.raises(BadInput, match="the deadline is 0"):
        Client(URL, deadline=0)
    with pytest.raises(BadInput, match="the deadline is -1"):
        Client(URL).ask("mood", {}, deadline=-1)
    with pytest.raises(SetupError, match="connections is 0"):
        Client(URL, connections=0)
    with pytest.raises(SetupError, match="cannot be read as certificates"):
        Client("https://host", ca="/no/such/file")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_misspelt_argument_is_named_with_the_nearest_right_one(kind: Any) -> None:
    with pytest.raises(TypeError, match="has no argument 'deadlin'; did you mean 'deadline'"):
        kind(URL, deadlin=3)
    with pytest.raises(TypeError, match="ask has no argument 'deadlin'; did you mean 'deadline'"):
        finish(kind(URL).ask, "mood", {}, deadlin=0.1)
    with pytest.raises(TypeError, match="ask has no argument 'timeout'; did you mean 'deadline'"):
        finish(kind(URL).ask, "mood", {}, timeout=1.0)
    with pytest.raises(TypeError, match="ask has no argument 'typ'; did you mean 'type'"):
        finish(kind(URL).ask, "mood", {}, typ=int)
    with pytest.raises(TypeError, match=f"ask has no argument 'retries'; give it to {kind.__name__}"):
        finish(kind(URL).ask, "mood", {}, retries=0)
    with pytest.raises(TypeError, match=f"{kind.__name__} has no argument 'priority'; give it to ask"):
        kind(URL, priority=1)
    with pytest.raises(TypeError, match="has no argument 'zzz'; it has: api_key, attempt_timeout"):
        kind(URL, zzz=1)


def finish(ask: Any, *arguments: Any, **options: Any) -> None:
    """Call it, and await it where that is needed."""
    asked = ask(*arguments, **options)
    if asyncio.iscoroutine(asked):
        asyncio.run(asked)


def test_type_checkers_see_a_misspelt_argument() -> None:
    # mypy warns of an ignore that nothing needs, so it fails here if it no longer sees these.
    with pytest.raises(TypeError):
        Client(URL, deadlin=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Client(URL).ask("mood", {}, deadlin=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        AsyncClient(URL, deadlin=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"deadline": "250ms"}, "the deadline is '250ms'; give a number of seconds above zero, such as deadline=0.25"),
        ({"deadline": True}, "the deadline is True"),
        ({"attempt_timeout": "1s"}, "the attempt_timeout is '1s'; give a number of seconds"),
        ({"retries": -1}, "retries is -1; give a whole number, 0 or more"),
        ({"retries": 1.5}, "retries is 1.5; give a whole number, 0 or more"),
        ({"connections": "many"}, "connections is 'many'; give a whole number, 1 or more"),
        ({"api_key": 17}, "the API key is no text"),
    ],
)
def test_a_wrong_setting_is_said_with_its_cure(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises((SetupError, BadInput), match=sentence):
        Client(URL, **settings)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"deadline": "250ms"}, "the deadline is '250ms'; give a number of seconds above zero, such as deadline=0.25"),
        ({"priority": "high"}, "the priority is 'high'; give a whole number, such as priority=1"),
        ({"priority": 1.5}, "the priority is 1.5; give a whole number"),
        ({"version": 2}, 'the version is 2; give a text, such as version="2"'),
        ({"key": 17}, 'the key is 17; give a text, such as key="17"'),
    ],
)
def test_a_wrong_option_is_said_with_its_cure(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Client(URL).ask("mood", {}, **options)


def test_numbers_of_numpy_are_numbers() -> None:
    asked = Client(URL, retries=0)._asked("mood", {}, {"deadline": np.float32(0.5), "priority": np.int64(2)})  # type: ignore[typeddict-item]
    assert asked.seconds == 0.5
    assert b"timebound-priority: 2\r\n" in asked.lines


def test_an_api_key_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "x-api-key" not in lines(Client(URL))
    monkeypatch.setenv("TIMEBOUND_API_KEY", "from-outside")
    assert "x-api-key: from-outside\r\n" in lines(Client(URL))
    assert "x-api-key: given\r\n" in lines(Client(URL, api_key="given"))
    with pytest.raises(SetupError) as raised:
        Client(URL, api_key="secret\nline")
    assert "secret" not in str(raised.value)


def test_options_become_headers() -> None:
    sent = lines(Client(URL), priority=-1, votes=True, request_id="r1", headers={"traceparent": "00-ab"})
    for line in ("timebound-priority: -1", "timebound-details: votes", "x-request-id: r1", "traceparent: 00-ab"):
        assert f"{line}\r\n" in sent


@pytest.mark.parametrize("options", [{"key": ""}, {"key": " a"}, {"key": "a\r\nb: c"}, {"headers": {"a: b": "c"}}])
def test_no_option_can_become_another_header(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        lines(Client(URL), **options)


def test_paths_are_made_of_names_or_given() -> None:
    client = Client(URL)
    assert client._asked("mood", {}, {}).path == "/predictions/mood"
    assert client._asked("mood", {}, {"version": "2"}).path == "/predictions/mood/2"
    assert client._asked("a b/c?", {}, {}).path == "/predictions/a%20b%2Fc%3F"
    assert client._asked("/inference", {}, {}).path == "/inference"
    assert client._asked("/a b\r\n?x", {}, {}).path == "/a%20b%0D%0A%3Fx"
    assert client._sought("mood", "a/b ü", None).path == "/v1/results/mood/a%2Fb%20%C3%BC"
    with pytest.raises(BadInput, match="version="):
        client._asked("/inference", {}, {"version": "2"})


def test_arrays_go_out_as_lists_and_bytes_in_a_field_as_base64() -> None:
    item = {"x": np.arange(4, dtype=np.float32).reshape(2, 2), "n": np.int64(7), "image": b"\x89PNG"}
    assert json.loads(encode(item)) == {"x": [[0, 1], [2, 3]], "n": 7, "image": "iVBORw=="}
    with pytest.raises(BadInput, match="object is not JSON"):
        encode({"x": object()})


def test_bytes_go_out_as_they_are_with_their_content_type() -> None:
    client = Client(URL)
    raw = client._asked("count", bytearray(b"\x00\xff"), {})
    assert (raw.body, b"content-type: application/octet-stream\r\n" in raw.lines) == (b"\x00\xff", True)
    picture = client._asked("mirror", memoryview(b"\x89PNG"), {"content_type": "image/png"})
    assert b"content-type: image/png\r\n" in picture.lines

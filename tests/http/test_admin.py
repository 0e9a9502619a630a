"""Who is the operator: with a token whoever has it, without one only who asks on this machine, directly."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from timebound.errors import RequestError
from timebound.http.admin import Admin

TOKEN = "a-töken"


def request(client: str | None = "127.0.0.1", **headers: str) -> Request:
    given = {"host": "127.0.0.1:8000", **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    return Request({"type": "http", "headers": raw, "client": (client, 5000) if client else None})


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["127.0.0.1:8000", "127.0.0.1", "localhost:8000", "[::1]:8000", "[::1]"])
def test_without_a_token_this_machine_may(client: str, host: str) -> None:
    Admin(None).check(request(client, host=host))


@pytest.mark.parametrize("client", ["10.0.0.1", "::2", "::ffff:10.0.0.1", "testclient", None])
def test_without_a_token_other_machines_may_not(client: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        Admin(None).check(request(client))
    assert refused.value.code == "forbidden"


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "x_real_ip", "via"])
def test_without_a_token_a_proxy_on_this_machine_may_not(header: str) -> None:
    with pytest.raises(RequestError):
        Admin(None).check(request(**{header: "127.0.0.1"}))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "", "localhost.evil.example", "127.0.0.1.evil"])
def test_without_a_token_a_web_page_under_another_name_may_not(host: str) -> None:
    with pytest.raises(RequestError):
        Admin(None).check(request(host=host))


def test_with_a_token_anyone_who_has_it_may() -> None:
    Admin(TOKEN).check(request("10.0.0.1", authorization=f"Bearer {TOKEN}", host="models.example"))


@pytest.mark.parametrize(
    "given", [None, "", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer é"]
)
def test_with_a_token_nobody_else_may_not_even_on_this_machine(given: str | None) -> None:
    headers = {"authorization": given} if given is not None else {}
    with pytest.raises(RequestError) as refused:
        Admin(TOKEN).check(request(**headers))
    assert refused.value.code == "unauthorized"
    assert TOKEN not in refused.value.detail


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},  # a page that has the operator's browser ask
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9000"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_without_a_token_a_page_of_another_origin_may_not(headers: dict[str, str]) -> None:
    with pytest.raises(RequestError):
        Admin(None).check(request(**headers))


def test_without_a_token_the_servers_own_page_may() -> None:
    Admin(None).check(request(origin="http://127.0.0.1:8000", sec_fetch_site="same-origin"))


def test_without_a_token_a_proxy_that_says_nothing_of_itself_but_speaks_http_1_0_may_not() -> None:
    proxied = request()
    proxied.scope["http_version"] = "1.0"
    with pytest.raises(RequestError):
        Admin(None).check(proxied)


def test_where_strangers_have_keys_there_is_no_operator_without_a_token() -> None:
    with pytest.raises(RequestError) as refused:
        Admin(None, needs_token=True).check(request())
    assert refused.value.code == "forbidden"


def test_the_scheme_of_a_token_is_written_as_one_likes_and_no_token_is_none() -> None:
    Admin(TOKEN).check(request("10.0.0.1", authorization=f"bearer {TOKEN}"))
    assert not Admin(None).has_token(b"Bearer ")

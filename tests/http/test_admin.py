"""Who is the operator: who has the token, or else comes by the operator's socket; no address makes one."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from timebound.errors import RequestError
from timebound.http.admin import BY_SOCKET, Admin

TOKEN = "a-töken"


def request(client: str | None = "127.0.0.1", *, by_socket: bool = False, **headers: str) -> Request:
    given = {"host": "127.0.0.1:8000", **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    mark = {BY_SOCKET: True} if by_socket else {}
    return Request({"type": "http", "headers": raw, "client": (client, 5000) if client else None, **mark})


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "127.0.0.1", "localhost:8000", "localhost", "[::1]:8000", "[::1]"])
def test_who_comes_by_the_socket_may(host: str) -> None:
    Admin(None).check(request(None, by_socket=True, host=host))


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "testclient", None])
def test_no_address_makes_an_operator_for_a_proxy_on_this_machine_has_a_local_one(client: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        Admin(None).check(request(client))
    assert refused.value.code == "forbidden"
    assert "--admin-token" in refused.value.detail


@pytest.mark.parametrize(
    "header", ["x_forwarded_for", "x_forwarded_host", "x_forwarded_proto", "forwarded", "x_real_ip", "via"]
)
def test_a_proxy_that_was_pointed_at_the_socket_may_not(header: str) -> None:
    with pytest.raises(RequestError):
        Admin(None).check(request(None, by_socket=True, **{header: "127.0.0.1"}))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "", "localhost.evil.example", "127.0.0.1.evil"])
def test_nobody_may_by_the_socket_under_another_name(host: str) -> None:
    with pytest.raises(RequestError):
        Admin(None).check(request(None, by_socket=True, host=host))


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"sec_fetch_site": "same-origin"}])
def test_no_web_page_may_by_the_socket(headers: dict[str, str]) -> None:
    with pytest.raises(RequestError):
        Admin(None).check(request(None, by_socket=True, **headers))


def test_with_a_token_anyone_who_has_it_may() -> None:
    Admin(TOKEN).check(request("10.0.0.1", authorization=f"Bearer {TOKEN}", host="models.example"))
    Admin(TOKEN).check(request("10.0.0.1", authorization=f"bearer {TOKEN}", x_forwarded_for="10.1.2.3"))


@pytest.mark.parametrize(
    "given", [None, "", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer é"]
)
def test_with_a_token_nobody_else_may_not_even_on_this_machine(given: str | None) -> None:
    headers = {"authorization": given} if given is not None else {}
    with pytest.raises(RequestError) as refused:
        Admin(TOKEN).check(request("127.0.0.1", by_socket=False, **headers))
    assert refused.value.code == "unauthorized"
    assert TOKEN not in refused.value.detail


def test_a_wrong_token_is_told_as_wrong_and_a_missing_one_is_not() -> None:
    with pytest.raises(RequestError, match="is not this server's admin token"):
        Admin(TOKEN).check(request(authorization="Bearer other"))
    with pytest.raises(RequestError, match=r"^send the admin token"):
        Admin(TOKEN).check(request())
    with pytest.raises(RequestError, match="this server has no admin token"):
        Admin(None).check(request(authorization="Bearer other"))


def test_who_comes_through_a_proxy_is_told_what_to_ask_instead() -> None:
    with pytest.raises(RequestError, match=r"ask the servers themselves.*kill -HUP.*--admin-token"):
        Admin(None).check(request(x_forwarded_for="10.1.2.3"))


def test_no_token_is_not_the_empty_token() -> None:
    assert not Admin(None).has_token(b"Bearer ")


def test_a_pass_lets_look_and_do_nothing_else_and_of_many_the_oldest_is_forgotten() -> None:
    admin = Admin(None)
    first = admin.passes.issue()
    carried = request(authorization=f"Bearer {first}")
    admin.check_pass(carried)
    with pytest.raises(RequestError):
        admin.check(carried)
    for _ in range(64):
        last = admin.passes.issue()
    admin.check_pass(request(authorization=f"Bearer {last}"))
    with pytest.raises(RequestError) as refused:
        admin.check_pass(carried)
    assert refused.value.detail.startswith("the server knows no such pass, and has no admin token; a pass holds until")
    assert "timebound live" in refused.value.detail

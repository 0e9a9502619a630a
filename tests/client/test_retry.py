"""When a call is sent again, to whom and until when: on a manual clock, with servers that fail in every way."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.driving import REFUSED, Drive, Said, Server, problem, reply, script, told_ms

from timebound.client.call import Attempt, preferred
from timebound.client.errors import (
    BadRequest,
    Busy,
    CallFailed,
    DeadlineMissed,
    ModelFailed,
    NotAllowed,
    NotFound,
    Unreachable,
)
from timebound.client.message import Reply
from timebound.client.retry import LEAST_S
from timebound.errors import RequestError


def test_a_broken_connection_is_tried_again_with_the_same_key_and_body() -> None:
    drive = Drive(script(REFUSED, REFUSED, reply(body={"mood": "good"})))
    drive.ask(deadline=2.0)
    keys = {head.split("idempotency-key: ")[1].split("\r\n")[0] for head in drive.heads}
    assert len(drive.heads) == 3
    assert len(keys) == 1
    assert len({attempt.question.body for attempt in drive.attempts}) == 1


def test_every_call_has_a_key_of_its_own_unless_one_is_given_or_refused() -> None:
    drive = Drive(script(reply()))
    for options in ({}, {}, {"key": "mine"}, {"key": None}):
        drive.ask(**options)
    first, second, mine, none = drive.heads
    assert first != second
    assert "idempotency-key: mine\r\n" in mine
    assert "idempotency-key" not in none


def test_each_attempt_tells_the_server_what_remains() -> None:
    drive = Drive(script(REFUSED, REFUSED, reply(), takes_s=0.1))
    drive.ask(deadline=2.0)
    assert [told_ms(head) for head in drive.heads] == pytest.approx([(2.0 - at) * 1e3 for at in drive.at], abs=0.1)
    assert drive.at[1] == pytest.approx(0.1 + 0.0375)


def test_the_way_to_the_server_and_back_is_taken_off_what_it_is_told() -> None:
    drive = Drive(script(reply()))
    drive.ask(deadline=1.0)
    sent = drive.attempts[0].head(drive.began, 0.03).decode()
    assert told_ms(sent) == 970.0
    assert told_ms(drive.attempts[0].head(drive.began, 5.0).decode()) == 900.0  # but never more than a tenth


def test_without_a_deadline_the_server_is_told_none_and_three_retries_follow() -> None:
    drive = Drive(script(REFUSED))
    with pytest.raises(Unreachable, match="server-0:8000: connection refused") as raised:
        drive.ask()
    assert "timebound-timeout-ms" not in drive.heads[0]
    assert (len(drive.attempts), raised.value.attempts) == (4, 4)


def test_pauses_double_and_are_spread_by_chance() -> None:
    for chance, first in ((0.0, 0.025), (0.5, 0.0375), (1.0, 0.05)):
        drive = Drive(script(REFUSED), random=lambda chance=chance: chance)  # type: ignore[misc]
        with pytest.raises(Unreachable):
            drive.ask(retries=3, deadline=60.0)
        assert drive.pauses == pytest.approx([first, 2 * first, 4 * first])


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_and_nobody_comes_back_too_early(status: int) -> None:
    drive = Drive(script(problem(status, "overloaded", retry_after="2"), reply()), random=lambda: 0.0)
    drive.ask(deadline=5.0)
    assert drive.at == pytest.approx([0.0, 2.01])


def test_a_retry_after_of_nothing_is_still_a_pause() -> None:
    drive = Drive(script(problem(503, "draining", retry_after="0"), takes_s=0.0))
    with pytest.raises(Busy):
        drive.ask(deadline=60.0)
    assert drive.pauses[0] == pytest.approx(0.0375)
    assert len(drive.attempts) < 60


def test_a_retry_after_beyond_the_deadline_is_raised_at_once() -> None:
    drive = Drive(script(problem(429, "overloaded", retry_after="2")))
    with pytest.raises(Busy, match="it is overloaded") as raised:
        drive.ask(deadline=1.0)
    error = raised.value
    assert (error.code, error.status, error.retry_after, error.attempts) == ("overloaded", 429, 2.0, 1)
    assert drive.took_s == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, NotFound),
        (413, BadRequest),
        (422, BadRequest),
        (500, ModelFailed),
        (504, DeadlineMissed),
    ],
)
def test_what_will_not_change_is_not_sent_again(status: int, kind: type[CallFailed]) -> None:
    drive = Drive(script(problem(status, "some_code")))
    with pytest.raises(kind) as raised:
        drive.ask(deadline=5.0)
    assert (raised.value.code, raised.value.status, len(drive.attempts)) == ("some_code", status, 1)
    assert isinstance(raised.value, RequestError)


def test_the_next_server_is_asked_at_once_and_the_first_later() -> None:
    for first in (REFUSED, problem(429, "queue_full", retry_after="3"), problem(503, "draining")):
        drive = Drive(script(first), script(reply()))
        drive.ask(deadline=1.0, key=key_for(drive, "server-0"))
        assert drive.asked == ["server-0", "server-1"]
        assert drive.pauses == []


def test_a_server_that_is_down_is_asked_last_for_a_while() -> None:
    drive = Drive(script(REFUSED), script(reply()))
    key = key_for(drive, "server-0")
    drive.ask(deadline=1.0, key=key)
    drive.ask(deadline=1.0, key=key)
    assert drive.asked == ["server-0", "server-1", "server-1"]
    drive.clock.advance(1.0)
    drive.ask(deadline=1.0, key=key)
    assert drive.asked[3:] == ["server-0", "server-1"]


def test_keys_are_spread_over_the_servers_and_each_stays_with_its_own() -> None:
    drive = Drive(*[script(reply())] * 3)
    for number in range(300):
        drive.ask(key=f"a{number}")
    first = drive.asked
    assert {host: 70 < first.count(host) < 130 for host in first} == dict.fromkeys(set(first), True)
    assert len(set(first)) == 3
    for number in range(300):
        drive.ask(key=f"a{number}")
    assert drive.asked[300:] == first


def test_an_attempt_that_takes_too_long_is_given_up_for_another_server() -> None:
    drive = Drive(script(reply(), takes_s=60.0), script(reply()))
    drive.ask(deadline=2.0, attempt_timeout=0.5, key=key_for(drive, "server-0"))
    assert drive.asked == ["server-0", "server-1"]
    assert drive.at == pytest.approx([0.0, 0.5])
    assert told_ms(drive.heads[0]) == 2000.0  # the server may use all of it: the retry joins


def test_a_server_that_says_nothing_ends_with_the_deadline() -> None:
    drive = Drive(script(reply(), takes_s=60.0))
    with pytest.raises(TimeoutError, match=r"no answer within 0.5 s") as raised:
        drive.ask(deadline=0.5)
    assert isinstance(raised.value, DeadlineMissed)
    assert drive.took_s == pytest.approx(0.5)


def test_what_a_handler_raised_is_not_sent_again_though_its_status_is_503() -> None:
    raised = {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}
    drive = Drive(script(reply(503, raised), reply()))
    with pytest.raises(ModelFailed, match="Prediction failed"):
        drive.ask(deadline=2.0)
    assert len(drive.attempts) == 1


def key_for(drive: Drive, host: str) -> str:
    """A key whose first server this is."""
    keys = (f"key-{number}" for number in range(1000))
    addresses = drive.around.addresses
    return next(key for key in keys if addresses[preferred(addresses, key, lambda: 0.0)[0]].host == host)


SAID = st.one_of(
    st.just(REFUSED),
    st.just(reply()),
    st.sampled_from([problem(429, "overloaded"), problem(503, "draining"), reply(502), problem(422, "bad_input")]),
    st.integers(0, 5).map(lambda seconds: problem(429, "overloaded", retry_after=str(seconds))),
)
TURNS = st.lists(st.tuples(st.floats(0.0, 3.0), SAID), min_size=1, max_size=6)


@given(
    servers=st.lists(TURNS, min_size=1, max_size=3),
    deadline=st.floats(0.001, 20.0),
    attempt_timeout=st.none() | st.floats(0.01, 5.0),
    retries=st.none() | st.integers(0, 5),
    chance=st.floats(0.0, 1.0, exclude_max=True),
)
def test_whatever_servers_do_the_deadline_holds_and_nobody_is_asked_too_early(
    servers: list[list[tuple[float, Said]]],
    deadline: float,
    attempt_timeout: float | None,
    retries: int | None,
    chance: float,
) -> None:
    not_before: dict[str, float] = {}

    def server(turns: list[tuple[float, Said]]) -> Server:
        left = list(turns)

        def answer(attempt: Attempt) -> tuple[float, Said]:
            now = drive.clock.now()
            assert now >= not_before.get(attempt.address.host, 0.0)
            takes_s, said = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(said, Reply) and "retry-after" in said.headers and takes_s < attempt.until - now:
                not_before[attempt.address.host] = now + takes_s + float(said.headers["retry-after"])
            return takes_s, said

        return answer

    drive = Drive(*map(server, servers), random=lambda: chance)
    with suppress(CallFailed):  # an answer or one of these, and nothing else
        drive.ask(retries=retries, attempt_timeout=attempt_timeout, deadline=deadline)
    assert drive.took_s <= deadline + 1e-6
    assert all(at + LEAST_S <= deadline + 1e-6 for at in drive.at)
    assert all(told_ms(head) <= (deadline - at) * 1e3 + 0.06 for head, at in zip(drive.heads, drive.at, strict=True))
    assert retries is None or len(drive.attempts) <= retries + 1
    assert len({attempt.question.key for attempt in drive.attempts}) <= 1

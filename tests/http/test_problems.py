"""Errors as clients see them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound import errors
from timebound.http.problems import OLD_CODES, STATUSES, from_error, from_outcome, headers_of, problem_body, status_of
from timebound.workers.failures import failure


def subclasses(kind: type[errors.RequestError]) -> list[type[errors.RequestError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in subclasses(child))]


def test_a_problem_names_its_kind_status_and_cause() -> None:
    body = problem_body("bad_input", "not a PNG", field="image", request_id="r1")
    assert msgspec.json.decode(body) == {
        "type": "urn:timebound:bad_input",
        "title": "Bad input",
        "status": 422,
        "detail": "not a PNG",
        "code": "bad_input",
        "field": "image",
        "request_id": "r1",
    }


def test_what_is_not_known_is_left_out() -> None:
    shown = msgspec.json.decode(problem_body("not_found", "nothing here"))
    assert set(shown) == {"type", "title", "status", "detail", "code"}


@pytest.mark.parametrize("code", STATUSES)
def test_every_code_has_an_error_status_and_a_title(code: str) -> None:
    shown = msgspec.json.decode(problem_body(code, "x"))
    assert 400 <= shown["status"] == status_of(code) < 600
    assert shown["title"] == STATUSES[code][1] != ""


def test_an_unknown_code_is_an_internal_error() -> None:
    assert status_of("made_up") == 500
    assert msgspec.json.decode(problem_body("made_up", "x"))["title"] == "Internal error"


def test_every_error_that_has_a_code_of_its_own_is_in_the_table() -> None:
    raised = [kind for kind in subclasses(errors.RequestError) if kind.__module__ == "timebound.errors"]
    codes = {kind.code for kind in raised if kind is not errors.Refusal}
    assert codes <= set(STATUSES)


def test_an_error_raised_in_the_gateway_becomes_a_problem() -> None:
    error = errors.BadInput("too dark", field="image")
    shown = msgspec.json.decode(from_error(error, "r1"))
    assert (shown["code"], shown["detail"], shown["field"], shown["request_id"]) == (
        "bad_input",
        "too dark",
        "image",
        "r1",
    )


@pytest.mark.parametrize("field", ["image", None])
def test_an_items_error_from_a_worker_becomes_the_same_problem(field: str | None) -> None:
    error: Any = errors.BadInput("too dark", field=field)
    assert from_outcome(failure("bad_input", "too dark", field), "r1") == from_error(error, "r1")


@pytest.mark.parametrize(("seconds", "header"), [(0.001, b"1"), (1, b"1"), (1.2, b"2"), (2.0, b"2"), (60.5, b"61")])
def test_retry_after_is_in_whole_seconds_and_never_too_soon(seconds: float, header: bytes) -> None:
    refusal = errors.Refusal("full", code="queue_full", retry_after_s=seconds)
    assert headers_of(refusal) == [(b"retry-after", header)]


@given(st.floats(0, 1e6))
def test_retry_after_is_the_next_whole_second(seconds: float) -> None:
    ((_, value),) = headers_of(errors.Refusal("full", code="queue_full", retry_after_s=seconds))
    assert max(seconds, 1) <= int(value) < max(seconds, 1) + 1


def test_without_a_time_to_come_back_there_is_no_retry_after() -> None:
    assert headers_of(errors.Refusal("full", code="queue_full")) == []
    assert headers_of(errors.BadInput("x")) == []


@pytest.mark.parametrize(("old", "new"), OLD_CODES.items())
def test_a_renamed_code_carries_its_old_name_and_the_old_name_still_works(old: str, new: str) -> None:
    shown = msgspec.json.decode(problem_body(new, "x"))
    assert (shown["code"], shown["old_code"]) == (new, old)
    assert from_error(errors.RequestError("x", code=old)) == from_error(errors.RequestError("x", code=new))
    assert status_of(old) == status_of(new)
    assert old not in STATUSES


def test_only_renamed_codes_carry_an_old_one() -> None:
    named = {code for code in STATUSES if "old_code" in msgspec.json.decode(problem_body(code, "x"))}
    assert named == set(OLD_CODES.values())

"""The access log: one line per request, written off the request's path."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from timebound.errors import DeadlineMissed
from timebound.events import Answered, Events, Refused
from timebound.observe.access import AccessLog, hashed
from timebound.types import ModelInfo, Outcome, Quality, Question, Result, Run, Source

REFUSED = Refused("m", "r2", "queue_full", 429, 0.0001)


def answered(name: str, code: str = "") -> Answered:
    request = Question(name, "m", b"", 0.0, 1.0)
    result = Result(Outcome(b"{}", code), Quality.PARTIAL, Source.STORED, batch_size=4)
    return Answered(request, result, 422 if code else 200, 0.012345)


def logged(caplog: pytest.LogCaptureFixture, *events: Any, **options: Any) -> list[dict[str, Any]]:
    """The fields of the lines that these events leave behind."""
    hub = Events()
    access = AccessLog(hub, **options)
    access.start()
    for event in events:
        hub.emit(event)
    access.stop()
    return [vars(record) for record in caplog.records]


def test_an_answer_is_one_line_with_how_it_came_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (line,) = logged(caplog, answered("r1"))
    assert (line["name"], line["msg"]) == ("timebound.access", "request")
    fields = ("model", "status", "ms", "quality", "source", "batch", "request_id")
    assert [line[field] for field in fields] == ["m", 200, 12.35, "partial", "stored", 4, "r1"]


def test_an_item_that_failed_has_its_code_and_no_quality(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (line,) = logged(caplog, answered("r1", "bad_input"))
    assert (line["status"], line["code"], line["batch"]) == (422, "bad_input", 4)
    assert "quality" not in line


def test_a_refusal_is_one_line_with_its_code(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (line,) = logged(caplog, REFUSED)
    fields = ("model", "status", "code", "ms", "request_id")
    assert [line[field] for field in fields] == ["m", 429, "queue_full", 0.1, "r2"]


def test_a_refusal_in_a_batch_names_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    missed = DeadlineMissed("the deadline came while it was computed")
    missed.run = Run(7, "m", "slot 1.0", 2, "best_rate", 100.0, 0.012, 100.4)
    (line,) = logged(caplog, Refused("m", "r2", "deadline_missed", 504, 0.1, error=missed))
    assert (line["batch_id"], line["slot"]) == (7, "slot 1.0")


def test_stop_writes_what_is_left_in_order(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lines = logged(caplog, *(answered(f"r{number}") for number in range(200)))
    assert [line["request_id"] for line in lines] == [f"r{number}" for number in range(200)]


def test_nothing_is_written_before_it_is_started(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hub = Events()
    access = AccessLog(hub)
    hub.emit(answered("early"))
    assert caplog.records == []
    access.start()
    access.stop()
    assert [vars(record)["request_id"] for record in caplog.records] == ["early"]


def test_a_full_backlog_drops_lines_and_says_how_many(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    hub = Events()
    access = AccessLog(hub)
    for _ in range(100_003):
        hub.emit(REFUSED)
    access.start()
    access.stop()
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["count"]) == ("access lines dropped", 3)


def keyed() -> Answered:
    run = Run(17, "m", "slot 1.0", 4, "all_waiting", 0.0, 0.01, 0.9)
    outcome = Outcome(b'{"label": "seven", "confidence": 0.5}')
    return Answered(Question("r", "m", b"", 0.0, 1.0, "k1"), Result(outcome, run=run), 200, 0.01)


def test_a_line_names_batch_slot_and_key_but_not_what_was_answered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (line,) = logged(caplog, keyed())
    assert (line["batch_id"], line["slot"], line["answer_bytes"]) == (17, "slot 1.0", 37)
    assert line["key"] == hashed("k1") != hashed("k2")
    assert "label" not in line


@pytest.mark.parametrize(("keys", "shown"), [("plain", "k1"), ("none", None)])
def test_keys_are_shown_as_the_option_says(caplog: pytest.LogCaptureFixture, keys: str, shown: str | None) -> None:
    caplog.set_level(logging.INFO)
    (line,) = logged(caplog, keyed(), keys=keys)
    assert line.get("key") == shown


def test_a_model_whose_inputs_are_kept_has_its_labels_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (line,) = logged(caplog, keyed(), models={"m": ModelInfo(name="m", keep_inputs=True)})
    assert (line["label"], line["confidence"]) == ("seven", 0.5)

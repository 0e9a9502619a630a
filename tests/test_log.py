"""Log lines as people and machines read them."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from timebound.log import HumanFormatter, JsonFormatter, ThreadedHandler, set_up_logging


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    handlers, level, uvicorn_level = list(root.handlers), root.level, uvicorn.level
    root.handlers = []  # those of pytest must not be closed by a forced set-up
    yield root
    root.handlers, root.level = handlers, level
    uvicorn.setLevel(uvicorn_level)


def record(message: str, *arguments: Any, level: int = logging.INFO, **fields: Any) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "timebound.worker", "levelno": level, "levelname": logging.getLevelName(level), **fields}
    )
    made.msg, made.args = message, arguments
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


def with_trace(message: str) -> logging.LogRecord:
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        return record(message, level=logging.ERROR, exc_info=sys.exc_info())


def test_a_human_line_has_time_room_message_and_fields() -> None:
    line = HumanFormatter(colour=False).format(record("loaded %s", "digits", pid=71, slots=2))
    time, _, rest = line.partition(" ")
    assert time.endswith(".250")
    assert rest == "worker: loaded digits  pid=71  slots=2"


def test_a_human_line_names_every_level_but_info() -> None:
    shown = HumanFormatter(colour=False)
    assert " WARNING worker: left" in shown.format(record("left", level=logging.WARNING))
    assert "INFO" not in shown.format(record("came"))


def test_only_trouble_is_coloured_and_only_when_asked() -> None:
    coloured, plain = HumanFormatter(colour=True), HumanFormatter(colour=False)
    trouble = record("left", level=logging.ERROR)
    assert coloured.format(trouble).startswith("\x1b[31m")
    assert coloured.format(trouble).endswith("\x1b[0m")
    assert "\x1b" not in plain.format(trouble)
    assert "\x1b" not in coloured.format(record("came"))


def test_a_human_line_is_followed_by_its_traceback() -> None:
    line, *trace = HumanFormatter(colour=False).format(with_trace("failed")).splitlines()
    assert line.endswith("ERROR worker: failed")
    assert trace[0].startswith("Traceback")
    assert trace[-1] == "RuntimeError: boom"


def test_a_json_line_is_one_object_with_the_records_fields() -> None:
    line = JsonFormatter().format(record("loaded %s", "digits", pid=71))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "logger": "timebound.worker",
        "message": "loaded digits",
        "pid": 71,
    }


def test_a_json_line_carries_its_traceback_in_one_field() -> None:
    line = JsonFormatter().format(with_trace("failed"))
    assert "\n" not in line
    trace = json.loads(line)["trace"]
    assert trace.startswith("Traceback")
    assert trace.endswith("RuntimeError: boom")


def test_a_json_line_writes_what_json_cannot_say_as_text() -> None:
    line = JsonFormatter().format(record("odd", thing=ValueError("no"), kind={"at": complex(1, 2)}))
    assert json.loads(line)["thing"] == "no"
    assert json.loads(line)["kind"] == {"at": "(1+2j)"}


def test_logging_is_set_up_as_json_on_stderr(root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", as_json=True)
    logging.getLogger("timebound.server").info("ready", extra={"at": "here"})
    logging.getLogger("timebound.server").debug("not this")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "ready"
    assert json.loads(line)["at"] == "here"


def test_the_format_follows_the_terminal_unless_told(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("info")  # captured stderr is no terminal
    logging.getLogger("timebound.server").info("ready")
    set_up_logging("info", as_json=False)
    logging.getLogger("timebound.server").info("ready")
    machine, person = capsys.readouterr().err.splitlines()
    assert json.loads(machine)["message"] == "ready"
    assert person.endswith(" server: ready")


def test_setting_logging_up_twice_writes_each_line_once(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("debug", as_json=True)
    set_up_logging("warning", as_json=True)
    logging.getLogger("timebound.server").warning("once")
    logging.getLogger("timebound.server").info("never")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_uvicorns_own_life_is_not_told_twice(root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("debug", as_json=True)
    logging.getLogger("uvicorn.error").info("Started server process")
    assert capsys.readouterr().err == ""


class Stuck(io.StringIO):
    """Whoever reads it stands still until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        assert self.go.wait(20)
        return super().write(text)


def test_a_reader_that_stands_still_holds_nobody_up_and_is_told_what_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timebound.log._MOST_LINES", 3)
    stream = Stuck()
    handler = ThreadedHandler(stream)
    handler.setFormatter(JsonFormatter())
    for number in range(10):
        handler.handle(record(f"line {number}"))
    stream.go.set()
    handler.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    missed = [line["count"] for line in lines if line["message"] == "log lines dropped"]
    seen = [line["message"] for line in lines if line["message"].startswith("line")]
    assert seen == [f"line {number}" for number in range(len(seen))]
    assert len(seen) in (3, 4)
    assert missed == [10 - len(seen)]


def test_in_somebody_elses_process_only_our_own_lines_are_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, kept = list(logging.getLogger().handlers), io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", kept)
    ours = logging.getLogger("timebound.guesthouse")
    set_up_logging("info", as_json=True, name="timebound.guesthouse")
    try:
        logging.getLogger("timebound.guesthouse.room").info("hello")
        assert json.loads(kept.getvalue())["message"] == "hello"
        assert logging.getLogger().handlers == theirs
    finally:
        ours.handlers = []

"""A handler's batch: what it gets, what it may return, and how each way to fail is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.handlers.test_manifest import GOOD, planted

from timebound.clock import ManualClock
from timebound.errors import SetupError
from timebound.handlers.entry import Room
from timebound.handlers.envelope import SAID, Asked, open_said, pack_asked
from timebound.handlers.store import handler_models
from timebound.types import Outcome
from timebound.workers.handled import HandlerRunner
from timebound.workers.members import open_runner
from timebound.workers.warmup import warm_up


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Handlers change the working directory and what can be imported; other tests want theirs back."""
    monkeypatch.chdir(tmp_path)
    yield
    if Room._current is not None:
        Room._current._leave()
        Room._current = None


def runner_of(folder: Path, source: str, config: str | None = None, **model: Any) -> HandlerRunner:
    folder.mkdir(exist_ok=True)
    planted(folder, {**GOOD, **model}, config)
    (folder / "h.py").write_text(source)
    (loaded,) = handler_models(folder)
    loaded.load()
    runner = open_runner(loaded, ManualClock())
    assert isinstance(runner, HandlerRunner)
    return runner


def run(runner: HandlerRunner, *bodies: bytes) -> list[Outcome]:
    report = runner.run(bodies)
    assert report is not None
    return report.outcomes


def asked(body: bytes = b"", media: str = "", query: str = "", **headers: str) -> bytes:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return pack_asked(Asked([(b"content-type", media.encode()), *lines], {}, query.encode()), body)


ECHO = """
def handle(data, context):
    if data is None:
        return None
    return [[sorted((k, type(v).__name__, v if not isinstance(v, bytearray) else v.decode()) for k, v in row.items()),
             context.get_request_header(i, "X-Mine")] for i, row in enumerate(data)]
"""


def test_a_body_comes_as_what_its_content_type_says(tmp_path: Path) -> None:
    runner = runner_of(tmp_path / "m", ECHO)
    rows = [
        (asked(b'{"a": 1}', "application/json"), [["body", "dict", {"a": 1}]]),
        (asked(b"hello", "text/plain; charset=utf-8"), [["body", "str", "hello"]]),
        (asked(b"hello"), [["body", "bytearray", "hello"]]),
        (asked(b"{bad", "application/json"), [["body", "bytearray", "{bad"]]),
        (asked(b"a=1&b=2", "application/x-www-form-urlencoded"), [["a", "bytearray", "1"], ["b", "bytearray", "2"]]),
        (asked(b"x", query="q=1"), [["body", "bytearray", "x"], ["q", "bytearray", "1"]]),
        (b"raw of another protocol", [["body", "bytearray", "raw of another protocol"]]),
    ]
    outcomes = run(runner, *(body for body, _ in rows))
    assert [json.loads(outcome.body)[0] for outcome in outcomes] == [wanted for _, wanted in rows]


def test_headers_are_found_however_they_are_written(tmp_path: Path) -> None:
    (outcome,) = run(runner_of(tmp_path / "m", ECHO), asked(x_mine="yes"))
    assert json.loads(outcome.body)[1] == "yes"


def test_a_form_that_is_broken_costs_its_own_item_alone(tmp_path: Path) -> None:
    broken, good = run(runner_of(tmp_path / "m", ECHO), asked(b"no", "multipart/form-data; boundary=x"), asked(b"1"))
    assert (broken.code, good.code) == ("bad_input", "")


WAYS = """
class PredictionException(Exception):
    def __init__(self, message, error_code=500):
        self.message, self.error_code = message, error_code

class Service:
    def initialize(self, context):
        self.context = context
        self.ready = True

    def handle(self, data, context):
        assert self.ready and self.context is context
        self.sizes = getattr(self, "sizes", []) + [len(data)]
        return [self.one(i, bytes(row["body"]).decode(), context) for i, row in enumerate(data)][context.cut:]
"""
ONE = """
    def one(self, i, what, context):
        context.cut = 1 if what == "fewer" else 0
        if what == "raise":
            raise ValueError("secret")
        if what == "exit":
            raise SystemExit(3)
        if what == "memory":
            raise MemoryError
        if what == "prediction":
            raise PredictionException("not that", 422)
        if what == "odd":
            raise PredictionException("not that", "7")
        if what == "said":
            context.set_response_status(201, idx=i)
            context.set_response_header(i, "X-A", "b")
            context.set_response_header(i, "X-Bad", "a\\r\\nX-Worse: b")
            context.set_response_content_type(i, "image/png")
        return object() if what == "object" else what
"""


@pytest.mark.parametrize(
    ("what", "status", "detail"),
    [
        ("raise", 503, "Prediction failed"),
        ("exit", 503, "Prediction failed"),
        ("memory", 507, "Out of resources"),
        ("prediction", 422, "not that"),
        ("odd", 500, "not that"),
        ("fewer", 503, "number of batch response mismatched"),
        ("object", 503, "Unsupported model output data type."),
    ],
)
def test_each_way_to_fail_has_its_status_and_costs_its_own_item_alone(
    tmp_path: Path, what: str, status: int, detail: str
) -> None:
    runner = runner_of(tmp_path / "m", WAYS + ONE, "batchSize: 4")
    good, bad = run(runner, asked(b"good"), asked(what.encode()))
    assert (good.code, good.body) == ("", b"good")
    told = msgspec.json.decode(bad.body)
    assert bad.code
    assert (told["status"], told["detail"]) == (status, detail)


def test_an_answer_has_the_status_and_headers_that_were_set_and_no_others(tmp_path: Path) -> None:
    runner = runner_of(tmp_path / "m", WAYS + ONE, "batchSize: 4")
    said, plain = run(runner, asked(b"said"), asked(b"plain"))
    assert said.media == SAID
    told, body = open_said(said.body)
    assert (told.status, told.media, told.headers, body) == (201, "image/png", [("x-a", "b")], b"said")
    assert (plain.media, plain.body) == ("text/plain; charset=utf-8", b"plain")


@pytest.mark.parametrize(
    ("status", "told", "body"),
    [
        ("100", 500, b"x"),
        ("101", 500, b"x"),
        ("199", 500, b"x"),
        ("600", 500, b"x"),
        ("404.0", 404, b"x"),
        ("204", 204, b""),
        ("205", 205, b""),
        ("304", 304, b""),
    ],
)
def test_a_status_is_one_that_ends_a_request_and_has_a_body_only_where_it_may(
    tmp_path: Path, status: str, told: int, body: bytes
) -> None:
    source = f"""
class PredictionException(Exception):
    error_code = {status}

def handle(data, context):
    if data is None:
        return None
    if data[0]["body"] == b"raise":
        raise PredictionException("why")
    context.set_response_status({status})
    return ["x"]
"""
    (answer,) = run(runner_of(tmp_path / "m", source), asked(b"x"))
    said, sent = open_said(answer.body)
    assert (said.status, sent) == (told, body)
    (refusal,) = run(runner_of(tmp_path / "n", source), asked(b"raise"))
    assert msgspec.json.decode(refusal.body)["status"] == (told if body else 500)


def test_what_is_no_list_is_told_so(tmp_path: Path) -> None:
    runner = runner_of(tmp_path / "m", "def handle(data, context):\n    return data and {'a': 1}\n")
    (outcome,) = run(runner, asked(b"1"))
    assert msgspec.json.decode(outcome.body)["detail"] == "Invalid model predict output"


def test_archives_in_one_process_keep_their_modules_and_files_apart(tmp_path: Path) -> None:
    source = """
import helper, pathlib

def handle(data, context):
    import late
    return data and [[helper.NAME, late.NAME, pathlib.Path("own.txt").read_text()] for row in data]
"""
    runners = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("helper.py", "late.py"):
            (folder / file).write_text(f"NAME = {name!r}\n")
        (folder / "own.txt").write_text(name)
        runners.append(runner_of(folder, source))
    for _ in range(2):
        for runner, name in zip(runners, ("one", "two"), strict=True):
            assert json.loads(run(runner, asked())[0].body) == [name] * 3


@pytest.mark.parametrize(
    ("handler", "source", "said"),
    [
        ("h.py", "x = 1\n", "neither a function"),
        ("h:gone", "def handle(data, context): pass\n", "no such function"),
        ("h.py", "class A:\n  def handle(s, d, c): pass\nclass B(A):\n  pass\n", "several classes"),
        ("h.py", "import no_such_library\n", "install no_such_library"),
        ("h.py", "def handle(data, context):\n    raise OSError('no weights')\n", "OSError: no weights"),
        ("h.py", "def handle(data, context):\n    raise SystemExit(1)\n", "SystemExit"),
        ("no_such_stock", "", "pip install torchserve"),
        ("../h.py:handle", "def handle(data, context): pass\n", None),
        ("a b", "", "must be a file of the archive"),
        ("", "", "names no handler"),
    ],
)
def test_a_handler_that_cannot_be_loaded_is_told_in_one_sentence(
    tmp_path: Path, handler: str, source: str, said: str | None
) -> None:
    if said is None:  # as its own server does: the file by its bare name, inside the archive
        runner_of(tmp_path / "m", source, handler=handler)
        return
    with pytest.raises(SetupError, match=said):
        runner_of(tmp_path / "m", source, handler=handler)


def test_it_is_warmed_up_with_an_example_if_it_has_one_and_else_not(tmp_path: Path) -> None:
    source = "calls = []\ndef handle(data, context):\n    calls.append(data)\n    return data and ['%d' % len(calls)]\n"
    without = warm_up(runner_of(tmp_path / "m", source), ManualClock())
    assert (without.backend, without.is_parallel, without.max_batch, without.warm_up_s) == ("handler", False, 1, 0.0)
    folder = tmp_path / "with"
    folder.mkdir()
    (folder / "sample.json").write_text("{}")
    runner = runner_of(folder, source, "timebound: {example: sample.json}")
    warm_up(runner, ManualClock())
    assert run(runner, asked())[0].body == b"4"


def test_numbers_of_handlers_are_summed_up_under_bounded_names(tmp_path: Path) -> None:
    source = """
def handle(data, context):
    m = context.metrics
    for row in data or ():
        m.add_counter("Calls", 2)
        m.add_time("Took", 3.5)
        m.add_metric("Own", value="4", unit="kB")
        m.add_metric_to_cache("Cached", "count", metric_type="counter").add_or_update(1, ["a"])
        m.add_size("No number", None)
        for number in range(200):
            m.add_percent(f"name {number}", 1)
    return data and ["" for row in data]
"""
    runner = runner_of(tmp_path / "m", source, "batchSize: 2")
    run(runner, asked(), asked())
    rows = runner.handler.measures.take()
    found = {row.name: (row.kind, row.count, row.total, row.unit) for row in rows}
    assert found["Calls"] == ("counter", 2, 4.0, "count")
    assert found["Took"] == ("value", 2, 7.0, "ms")
    assert found["Own"] == ("value", 2, 8.0, "kB")
    assert found["Cached"] == ("counter", 2, 2.0, "count")
    assert len(found) <= 101
    assert "other" in found
    assert runner.handler.measures.take() == []


def test_fallbacks_of_two_archives_may_lie_in_files_of_one_name(tmp_path: Path) -> None:
    models = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "fallback.py").write_text(f"def guess(row):\n    return [{name!r}, sorted(row)]\n")
        models.append(runner_of(folder, ECHO, "timebound: {fallback: fallback.py:guess}").model)
    for _ in range(2):
        assert [model.fallback(asked(b"x")) for model in models] == [["one", ["body"]], ["two", ["body"]]]

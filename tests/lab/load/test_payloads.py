from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from timebound.errors import SetupError
from timebound.lab.load.client import Reply
from timebound.lab.load.payloads import Expectation, expecting, from_folder, from_lines, from_text, same
from timebound.lab.load.requests import Payload


def reply(body: bytes, quality: str = "full") -> Reply:
    return Reply(200, [(b"timebound-quality", quality.encode())], body)


def is_right(payload: Payload, body: bytes) -> bool:
    assert payload.is_right is not None
    return payload.is_right(reply(body))


def test_a_folder_gives_its_files_in_order_with_their_types(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"\x89PNG")
    (tmp_path / "a.json").write_bytes(b"{}")
    (tmp_path / ".hidden").write_bytes(b"no")
    payloads = from_folder(tmp_path)
    assert [(each.name, each.content_type) for each in payloads] == [
        ("a.json", "application/json"),
        ("b.png", "image/png"),
    ]
    assert payloads[1].body == b"\x89PNG"


def test_lines_of_json_may_carry_the_answer_that_is_expected(tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text('{"n": 1, "answer": {"sum": 2}}\n\n{"n": 2, "answer": {"sum": 4}}\n')
    first, second = from_lines(file, "answer")
    assert (first.body, second.body) == (b'{"n":1}', b'{"n":2}')
    assert is_right(second, b'{"sum": 4}')
    assert not is_right(second, b'{"sum": 2}')


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("{}\nno\n", None, "line 2 is not JSON"),
        ('{"a": 1}\n', "answer", "line 1 has no field 'answer'"),
        ("\n", None, "holds no line"),
    ],
)
def test_lines_that_cannot_be_used_are_named(tmp_path: Path, text: str, field: str | None, words: str) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text(text)
    with pytest.raises(SetupError, match=words):
        from_lines(file, field)


def test_a_text_is_json_if_it_is_or_will_be(tmp_path: Path) -> None:
    assert from_text('{"n": {i}}')[0].content_type == "application/json"
    assert from_text("hello")[0].content_type == "text/plain"
    (tmp_path / "p.png").write_bytes(b"{i}")
    (payload,) = from_text(f"@{tmp_path / 'p.png'}")
    assert (payload.content_type, payload.has_places) == ("image/png", False)


def test_expected_answers_come_by_name_in_order_or_one_for_all(tmp_path: Path) -> None:
    payloads = [Payload(b"1", name="a.png"), Payload(b"2", name="b.png")]
    by_name, in_order, for_all = tmp_path / "names.json", tmp_path / "lines.jsonl", tmp_path / "one.json"
    by_name.write_text('{"b.png": 2, "a.png": 1}')
    in_order.write_text("1\n2\n")
    for_all.write_text("[7]")
    assert all(
        is_right(expecting(payloads, file, None, 0.0)[1], b"2")
        and not is_right(expecting(payloads, file, None, 0.0)[0], b"2")
        for file in (by_name, in_order)
    )
    assert is_right(expecting(payloads, for_all, None, 0.0)[1], b"7")
    in_order.write_text("1\n2\n3\n")
    with pytest.raises(SetupError, match="3 answers for 2 payloads"):
        expecting(payloads, in_order, None, 0.0)
    by_name.write_text('{"b.png": 2}')
    with pytest.raises(SetupError, match=r"no answer for a\.png"):
        expecting(payloads, by_name, None, 0.0)


def test_one_field_can_be_compared_alone() -> None:
    wanted = Expectation({"answer": {"label": "cat"}, "took": 3}, field="answer.label")
    assert wanted.is_met(reply(b'{"answer": {"label": "cat", "score": 1}, "took": 9}'))
    assert not wanted.is_met(reply(b'{"answer": {"label": "dog"}}'))
    assert not wanted.is_met(reply(b'{"other": 1}'))
    assert Expectation("cat", field="answer").is_met(reply(b'{"answer": "cat"}'))


def test_only_full_answers_are_compared() -> None:
    assert Expectation(1).is_met(reply(b"2", quality="fallback"))
    assert not Expectation(1).is_met(reply(b"2"))


def test_an_answer_that_is_not_json_is_compared_as_text() -> None:
    assert Expectation("plain text").is_met(reply(b"plain text"))
    assert not Expectation({"a": 1}).is_met(reply(b"<html>"))


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "agree"),
    [
        (1.0, 1.0000001, 1e-6, True),
        (1.0, 1.1, 1e-6, False),
        (1, 1.0, 0.0, True),
        ([1, [2.0]], [1, [2.0000001]], 1e-6, True),
        ([1], [1, 2], 1.0, False),
        ({"a": 1}, {"a": 1, "b": 2}, 0.0, False),
        (True, 1, 1.0, False),
        (None, None, 0.0, True),
        ("1", 1, 1.0, False),
    ],
)
def test_values_agree_within_the_tolerance(expected: Any, got: Any, tolerance: float, agree: bool) -> None:
    assert same(expected, got, tolerance) is agree

"""A file served as it is: its request and its answer come from its signature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.models.onnx_files import (
    INT64,
    STRING,
    UINT8,
    save,
    save_doubler,
    save_echo,
    save_sum_and_difference,
)

from timebound.backends.file_model import file_model
from timebound.backends.onnx import OnnxBackend
from timebound.clock import ManualClock
from timebound.errors import SetupError
from timebound.model import check_class, example_body, name_of, request_schema
from timebound.types import Outcome
from timebound.workers.runner import Runner


def answers(file: Path, *bodies: Any) -> list[Outcome]:
    """The outcomes of a batch of bodies, JSON-encoded."""
    runner = Runner(file_model(OnnxBackend(file), name="tiny"), ManualClock())
    report = runner.run([msgspec.json.encode(body) for body in bodies])
    assert report is not None
    return report.outcomes


def said(outcome: Outcome) -> Any:
    return msgspec.json.decode(outcome.body)


def test_the_request_and_the_answer_are_read_from_the_file(tmp_path: Path) -> None:
    first, second = answers(save_doubler(tmp_path / "m.onnx"), {"x": [1, 2, 3]}, {"x": [0.5, 0, 0]})
    assert (first.code, said(first)) == ("", {"y": [2, 4, 6]})
    assert said(second) == {"y": [1, 0, 0]}


def test_the_model_has_the_name_and_version_it_is_given(tmp_path: Path) -> None:
    model = file_model(OnnxBackend(save_doubler(tmp_path / "m.onnx")), name="digits", version="7")
    check_class(type(model))
    assert (name_of(type(model)), type(model).version) == ("digits", "7")


def test_the_example_is_a_body_the_model_answers(tmp_path: Path) -> None:
    model = file_model(OnnxBackend(save_sum_and_difference(tmp_path / "m.onnx")), name="tiny")
    assert model.example == {"a": [0.0, 0.0], "b": [0.0, 0.0]}
    report = Runner(model, ManualClock()).run([example_body(model.example)])
    assert report is not None
    (outcome,) = report.outcomes
    assert outcome.code == ""


def test_several_inputs_and_outputs_are_fields(tmp_path: Path) -> None:
    file = save_sum_and_difference(tmp_path / "m.onnx")
    first, second = answers(file, {"a": [3, 3], "b": [1, 2]}, {"a": [0, 0], "b": [1, 1]})
    assert said(first) == {"sum": [4, 5], "difference": [2, 1]}
    assert said(second) == {"sum": [1, 1], "difference": [-1, -1]}


def test_input_names_need_not_be_python_names(tmp_path: Path) -> None:
    file = save_echo(tmp_path / "m.onnx", INT64, ("n", 2), name="input.1:0")
    (outcome,) = answers(file, {"input.1:0": [4, 5]})
    assert said(outcome) == {"y": [4, 5]}


def test_the_schema_is_nested_lists_without_the_batch(tmp_path: Path) -> None:
    model = file_model(OnnxBackend(save_echo(tmp_path / "m.onnx", INT64, ("n", 2, "w"))), name="tiny")
    schema = request_schema(type(model).Request)
    assert schema is not None
    (definition,) = schema["$defs"].values()
    assert definition["properties"] == {
        "x": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
    }
    assert definition["required"] == ["x"]


def test_one_number_per_item_is_a_plain_number(tmp_path: Path) -> None:
    first, second = answers(save_echo(tmp_path / "m.onnx", INT64, ("n",)), {"x": 4}, {"x": 5})
    assert [said(first), said(second)] == [{"y": 4}, {"y": 5}]


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ([1, 2], "has shape [2], the model takes [3]"),
        ([], "has shape [0], the model takes [3]"),
        ([1, 2, 3, 4], "has shape [4], the model takes [3]"),
    ],
)
def test_another_shape_is_that_items_error(tmp_path: Path, value: Any, detail: str) -> None:
    bad, good = answers(save_doubler(tmp_path / "m.onnx"), {"x": value}, {"x": [1, 1, 1]})
    assert (bad.code, said(bad)) == ("bad_input", {"detail": detail, "field": "x"})
    assert said(good) == {"y": [2, 2, 2]}


def test_a_free_dimension_is_shown_as_any(tmp_path: Path) -> None:
    (bad,) = answers(save_echo(tmp_path / "m.onnx", INT64, ("n", "w", 2)), {"x": [[1, 2, 3]]})
    assert said(bad)["detail"] == "has shape [1, 3], the model takes [any, 2]"


def test_an_item_with_a_batch_dimension_is_told_to_leave_it_out(tmp_path: Path) -> None:
    bad, good = answers(save_doubler(tmp_path / "m.onnx"), {"x": [[1, 2, 3]]}, {"x": [1, 1, 1]})
    told = "Expected 'float', got 'array'; send one item of shape [3], without the batch dimension"
    assert (bad.code, said(bad)) == ("bad_input", {"detail": told, "field": "x[0]"})
    assert said(good) == {"y": [2, 2, 2]}
    (wrong,) = answers(save_doubler(tmp_path / "m.onnx"), {"x": ["a", 2, 3]})
    assert said(wrong) == {"detail": "Expected 'float', got 'str'", "field": "x[0]"}


@pytest.mark.parametrize("value", [[[1, 2], [3]], [[300, 1]], [[-1, 1]]], ids=["ragged", "too large", "below zero"])
def test_what_does_not_fit_the_dtype_is_that_items_error(tmp_path: Path, value: Any) -> None:
    (bad,) = answers(save_echo(tmp_path / "m.onnx", UINT8, ("n", "h", "w")), {"x": value})
    assert (bad.code, said(bad)) == (
        "bad_input",
        {"detail": "not a rectangular list of uint8", "field": "x"},
    )


def test_a_number_too_large_for_the_dtype_is_named_by_its_place(tmp_path: Path) -> None:
    fine, bad = answers(save_doubler(tmp_path / "m.onnx"), {"x": [1e38, 2, 3]}, {"x": [1, 2, -1e39]})
    assert said(fine)["y"][0] == pytest.approx(2e38)
    assert (bad.code, said(bad)) == (
        "bad_input",
        {"detail": "a number beyond what float32 can hold", "field": "x[2]"},
    )


def test_a_wrong_type_or_a_missing_input_is_named_by_its_field(tmp_path: Path) -> None:
    wrong, missing = answers(save_doubler(tmp_path / "m.onnx"), {"x": ["a", "b", "c"]}, {})
    assert (wrong.code, said(wrong)["field"]) == ("bad_input", "x[0]")
    assert (missing.code, said(missing)["field"]) == ("bad_input", "x")


def test_texts_of_different_lengths_run_as_one_batch(tmp_path: Path) -> None:
    model = file_model(OnnxBackend(save_echo(tmp_path / "m.onnx", STRING, ("n", 1))), name="tiny")
    runner = Runner(model, ManualClock())
    requests = [runner.decode(msgspec.json.encode({"x": [text]})) for text in ("a", "longer")]
    outputs = runner.infer([model.prepare(request) for request in requests])
    assert [list(output) for output in outputs] == [["a"], ["longer"]]


def test_a_file_exported_for_one_item_is_never_given_more(tmp_path: Path) -> None:
    assert file_model(OnnxBackend(save_doubler(tmp_path / "m.onnx", batch=1)), name="tiny").max_batch == 1
    assert file_model(OnnxBackend(save_doubler(tmp_path / "n.onnx")), name="tiny").max_batch == 64


def test_an_input_without_a_batch_dimension_is_refused_at_start(tmp_path: Path) -> None:
    file = save(tmp_path / "m.onnx", [("Identity", ["x"], ["y"])], {"x": (INT64, ())}, {"y": (INT64, ())})
    with pytest.raises(SetupError) as caught:
        file_model(OnnxBackend(file), name="tiny")
    assert str(caught.value) == (
        "m.onnx: input x: int64[] has no batch dimension; export it with one, or write a class"
    )


def test_not_a_number_is_answered_as_null(tmp_path: Path) -> None:
    model = file_model(OnnxBackend(save_doubler(tmp_path / "m.onnx")), name="tiny")
    runner = Runner(model, ManualClock())
    (output,) = runner.infer([np.full(3, np.nan, np.float32)])
    assert runner.encode(model.finish(output, None)).body == b'{"y":[null,null,null]}'

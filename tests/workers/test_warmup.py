"""The warm-up run: what it runs on, what it finds out, and what it says when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.onnx_files import save_doubler

import timebound as tb
from timebound.backends.base import TensorSpec
from timebound.backends.file_model import file_model
from timebound.backends.onnx import onnx
from timebound.clock import ManualClock
from timebound.errors import SetupError
from timebound.model import request_schema
from timebound.schema import sample
from timebound.types import Body, ModelInfo
from timebound.workers.members import open_runner
from timebound.workers.warmup import warm_up


class Echo(tb.Model):
    """Remembers every request it prepares."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def prepare(self, request: Any) -> Any:
        self.seen.append(request)
        return request

    def infer(self, batch: Any) -> Any:
        return batch


class Typed(Echo):
    class Request(tb.Struct):
        id: str
        size: int
        mode: Literal["fast", "good"]
        note: str = "none"
        place: tuple[float, str] | None = None


def warm(model: tb.Model) -> ModelInfo:
    clock = ManualClock()
    return warm_up(open_runner(model, clock), clock)


def complaint(model: tb.Model) -> str:
    with pytest.raises(SetupError) as caught:
        warm(model)
    return str(caught.value)


def fails(*given: Any) -> Any:
    raise RuntimeError("boom")


def variant(base: type[tb.Model], **attributes: Any) -> Any:
    return type("Variant", (base,), attributes)()


def test_the_example_is_run_twice_alone_and_once_in_company() -> None:
    model = variant(Typed, example={"id": "a", "size": 1, "mode": "good"})
    info = warm(model)
    assert model.seen == [Typed.Request("a", 1, "good")] * 3
    assert info.example == {"id": "a", "size": 1, "mode": "good"}


def test_a_raw_example_is_run_and_not_shown() -> None:
    model = variant(Echo, example=b"\x00\xff", finish=lambda self, output, request: len(output))
    info = warm(model)
    assert model.seen == [b"\x00\xff"] * 3
    assert (info.body, info.example, info.request_schema) == (Body.RAW, None, None)


def test_without_an_example_zeros_of_the_nets_signature_are_run() -> None:
    batches: list[Any] = []

    def net(batch: Any) -> Any:
        batches.append(batch)
        return batch["a"]

    model = variant(tb.Model, prepare=fails)
    model.net = tb.python(net)
    model.net.inputs = [TensorSpec("a", "float32", (None, 2)), TensorSpec("b", "int64", (None, None, 3))]
    assert warm(model).example is None
    assert len(batches) == 2
    assert {name: (array.shape, array.dtype.name) for name, array in batches[0].items()} == {
        "a": ((1, 2), "float32"),
        "b": ((1, 1, 3), "int64"),
    }
    assert not any(array.any() for array in batches[0].values())


def test_a_typed_model_without_an_example_gets_a_made_up_body() -> None:
    model = Typed()
    info = warm(model)
    assert model.seen == [Typed.Request("", 0, "fast")] * 2
    assert info.example == {"id": "", "size": 0, "mode": "fast"}


def test_a_raw_model_without_an_example_gets_an_empty_body() -> None:
    model = variant(Echo, finish=lambda self, output, request: "ok")
    warm(model)
    assert model.seen == [b"", b""]


def test_what_the_class_says_is_told_to_the_gateway() -> None:
    model = variant(
        Typed,
        name="digits",
        version="3",
        path="/inference",
        deadline=2,
        key="id",
        max_batch=8,
        parallel=True,
        fallback=lambda self, request: None,
    )
    model.net = tb.ensemble(len, len, combine="vote")
    info = warm(model)
    assert info.paths == ["/inference", "/predictions/digits"]
    assert (info.name, info.version, info.deadline_s, info.key, info.max_batch) == ("digits", "3", 2.0, "id", 8)
    assert (info.backend, info.members, info.combine) == ("ensemble", 2, "vote")
    assert (info.is_parallel, info.has_fallback, info.body) == (True, True, Body.JSON)
    assert info.request_schema == request_schema(Typed.Request)


def test_the_class_may_overrule_the_backend_on_parallel_runs(tmp_path: Path) -> None:
    net = tb.onnx(save_doubler(tmp_path / "m.onnx"))
    for said, meant in ((None, True), (False, False), (True, True)):
        model = variant(tb.Model, parallel=said)
        model.net = net
        assert warm(model).is_parallel is meant


def test_the_second_run_is_the_first_guess_of_a_duration() -> None:
    clock = ManualClock()
    times = iter([5.0, 0.25, 1.0])

    class Lazy(Echo):
        example = b"x"

        def infer(self, batch: Any) -> Any:
            clock.advance(next(times))
            return ["ok"] * len(batch)

    assert warm_up(open_runner(Lazy(), clock), clock).warm_up_s == 0.25


def test_an_onnx_file_warms_itself_up(tmp_path: Path) -> None:
    info = warm(file_model(onnx(save_doubler(tmp_path / "m.onnx")), name="twice"))
    assert (info.name, info.backend, info.example) == ("twice", "onnx", {"x": [0.0, 0.0, 0.0]})


@pytest.mark.parametrize(("method", "stage"), [("prepare", "prepare()"), ("infer", "infer()"), ("finish", "finish()")])
def test_a_failing_stage_is_named_with_the_users_line_and_a_cure(method: str, stage: str) -> None:
    line = fails.__code__.co_firstlineno + 1
    told = f"RuntimeError: boom (test_warmup.py, line {line})"
    assert complaint(variant(Echo, example=b"x", **{method: fails})) == (
        f"variant: {stage} failed on the example: {told}"
    )
    assert complaint(variant(Typed, **{method: fails})) == (
        f"variant: {stage} failed on a made-up body: {told}; set `example` on the class to a body it can answer"
    )


def test_a_model_that_forgets_the_batch_axis_is_found_out() -> None:
    told = complaint(variant(Echo, example=b"x", infer=lambda self, batch: [1]))
    assert "infer() failed on the example: ValueError: variant.infer returned 1 outputs for 2 items" in told


@pytest.mark.parametrize("base", [Echo, Typed])
def test_an_infer_written_for_a_single_item_is_told_that_it_gets_a_batch(base: type[tb.Model]) -> None:
    told = complaint(variant(base, example=getattr(base, "example", None), infer=lambda self, item: item.text))
    assert "AttributeError: 'list' object has no attribute 'text'" in told
    assert told.endswith(
        "; infer() gets a whole batch: what prepare() gave for each item, in a list, and returns one output for each"
    )


def test_an_example_that_does_not_fit_the_request_names_the_field() -> None:
    assert complaint(variant(Typed, example={"id": 7, "size": 1, "mode": "good"})) == (
        "variant: decoding refused the example (field id): Expected 'str', got 'int'; fix `example` or `Request`"
    )


def test_a_made_up_body_that_is_refused_asks_for_an_example() -> None:
    def picky(self: Any, request: Any) -> Any:
        raise tb.BadInput("the image is empty", field="image")

    assert complaint(variant(Typed, prepare=picky)) == (
        "variant: prepare() refused a made-up body (field image): the image is empty; "
        "set `example` on the class to a body it can answer"
    )


def test_another_number_of_outputs_is_found_at_start() -> None:
    sentence = complaint(variant(Echo, example=b"x", infer=lambda self, batch: [1, 2]))
    assert "infer() failed on the example: ValueError: variant.infer returned 2 outputs for 1 items" in sentence


def test_an_answer_json_cannot_say_is_found_at_start() -> None:
    sentence = complaint(variant(Echo, example=b"x", finish=lambda self, output, request: object()))
    assert "finish() failed on the example: TypeError: an answer holds a value of type object" in sentence


@pytest.mark.parametrize("example", [7, {"image": np.zeros(2)}], ids=["number", "array"])
def test_an_example_that_is_no_body_is_named(example: Any) -> None:
    assert "example" in complaint(variant(Typed, example=example))


def test_zeros_that_fail_are_named() -> None:
    model = tb.Model()
    model.net = tb.python(fails)
    model.net.inputs = [TensorSpec("x", "float32", (None, 2))]
    assert complaint(model).startswith("model: the warm-up run on zeros failed: RuntimeError: boom (test_warmup.py")


class Inner(msgspec.Struct):
    n: int


class Every(msgspec.Struct):
    text: str
    number: float
    whole: int
    truth: bool
    nothing: None
    either: int | str | None
    anything: Any
    choice: Literal["a", "b"]
    inner: Inner
    pair: tuple[int, str]
    several: list[Inner]
    some: Annotated[list[int], msgspec.Meta(min_length=2)]
    table: dict[str, Inner]
    given: str = "x"


def test_a_sample_fits_a_type_with_every_kind_of_field() -> None:
    schema = request_schema(Every)
    assert schema is not None
    made = msgspec.convert(sample(schema), Every)
    assert (made.text, made.choice, made.inner, made.some) == ("", "a", Inner(0), [0, 0])


@given(st.lists(st.sampled_from([str, int, float, bool, None, list[int], dict[str, int], Inner, Any]), max_size=6))
def test_a_sample_fits_any_mixture_of_fields(kinds: list[Any]) -> None:
    made = msgspec.defstruct("Made", [(f"field_{number}", kind) for number, kind in enumerate(kinds)])
    schema = request_schema(made)
    assert schema is not None
    msgspec.convert(sample(schema), made)


def test_a_model_is_described_by_the_first_paragraph_of_its_own_docstring() -> None:
    class Told(Echo):
        """Says what it was
        told.

        More about it.
        """

    class Silent(Echo):
        pass

    assert (warm(Told()).description, warm(Silent()).description) == ("Says what it was told.", "")


class Answering(Typed):
    example: ClassVar = {"id": "a", "size": 1, "mode": "fast"}

    class Answer(tb.Struct):
        label: str

    def finish(self, output: Any, request: Any) -> Any:
        return {"label": output.id}


def test_an_answer_class_describes_answers() -> None:
    info = warm(Answering())
    assert info.answer_schema == msgspec.json.schema(Answering.Answer)
    assert (info.answer_example, info.answer_media) == ({"label": "a"}, "application/json")


def test_without_one_the_answer_to_the_example_is_shown() -> None:
    class Silent(Answering):
        Answer = None  # type: ignore[assignment]

    info = warm(Silent())
    assert (info.answer_schema, info.answer_example) == (None, {"label": "a"})


def test_an_answer_that_is_not_as_the_class_says_is_told() -> None:
    class Wrong(Answering):
        class Answer(tb.Struct):
            label: int

    told = complaint(Wrong())
    assert told == "wrong: the example's answer is not what Answer says: Expected 'int', got 'str' - at '$.label'; fix one of the two"  # fmt: skip  # noqa: E501


def test_an_answer_class_that_json_cannot_describe_is_told() -> None:
    class Odd(Answering):
        Answer = object()  # type: ignore[assignment]

    assert "Answer cannot be described" in complaint(Odd())


def test_a_reply_is_shown_by_its_media_type() -> None:
    class Drawing(Typed):
        example: ClassVar = {"id": "a", "size": 1, "mode": "fast"}

        def finish(self, output: Any, request: Any) -> Any:
            return tb.Reply(b"x", media="image/png")

    info = warm(Drawing())
    assert (info.answer_example, info.answer_media) == (None, "image/png")

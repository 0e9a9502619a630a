"""Inputs that vary in length: padded with a mask, and tried together at the warm-up."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timebound as tb
from timebound.backends.base import TensorSpec
from timebound.clock import ManualClock
from timebound.errors import SetupError
from timebound.model import check_class, size_field
from timebound.types import ModelInfo
from timebound.workers.members import open_runner
from timebound.workers.padding import MOST_BYTES, Padding
from timebound.workers.runner import Runner
from timebound.workers.warmup import warm_up


class Means(tb.Model):
    """The mean of the numbers of each request."""

    pad: ClassVar[Any] = "ids"
    example: ClassVar[Any] = {"ids": [1, 2, 3, 6]}

    class Request(tb.Struct):
        ids: list[int]

    def infer(self, batch: Any) -> Any:
        return (batch["ids"] * batch["mask"]).sum(1) / np.maximum(batch["mask"].sum(1), 1)


def runner_of(model: tb.Model) -> Runner:
    return open_runner(model, ManualClock())


def warm(model: tb.Model) -> ModelInfo:
    return warm_up(runner_of(model), ManualClock())


def complaint(model: tb.Model) -> str:
    with pytest.raises(SetupError) as caught:
        warm(model)
    return str(caught.value)


def answers(model: tb.Model, *bodies: Any) -> list[Any]:
    report = runner_of(model).run([msgspec.json.encode(body) for body in bodies])
    assert report is not None
    return [outcome.code or msgspec.json.decode(outcome.body) for outcome in report.outcomes]


@given(st.lists(st.lists(st.integers(-9, 9), max_size=7), min_size=1, max_size=5))
def test_requests_of_any_lengths_are_answered_together_as_alone(rows: list[list[int]]) -> None:
    model = Means()
    together = answers(model, *({"ids": row} for row in rows))
    assert together == pytest.approx([sum(row) / max(1, len(row)) for row in rows])


def test_prepare_may_give_arrays_lists_or_dicts_and_the_rest_is_kept() -> None:
    padding = Padding(("ids",))
    for items in ([np.array([1, 2]), np.array([3])], [[1, 2], [3]], [{"ids": [1, 2]}, {"ids": (3,)}]):
        batch = padding.stack(items)
        assert batch["ids"].tolist() == [[1, 2], [3, 0]]
        assert batch["mask"].tolist() == [[True, True], [True, False]]
    batch = padding.stack([{"ids": [1], "lang": "en", "place": np.zeros(2)}] * 2)
    assert (batch["lang"], batch["place"].shape) == (["en", "en"], (2, 2))


def test_several_fields_are_padded_and_the_mask_is_that_of_the_first() -> None:
    batch = Padding(("ids", "types")).stack([{"ids": [1, 2], "types": [7, 7]}, {"ids": [3], "types": [8]}])
    assert batch["types"].tolist() == [[7, 7], [8, 0]]
    assert batch["mask"].sum() == 3


def test_an_empty_list_is_of_the_kind_that_was_seen_before() -> None:
    padding = Padding(("rows",))
    padding.stack([np.ones((2, 3), np.float32)])
    batch = padding.stack([[]])
    assert (batch["rows"].shape, batch["rows"].dtype, batch["mask"].any()) == ((1, 1, 3), np.float32, np.False_)


def test_an_item_that_cannot_be_padded_fails_alone() -> None:
    class Loose(Means):
        Request = None  # type: ignore[assignment]
        json = True

    told = answers(Loose(), {"ids": [1, 3]}, {"ids": 7}, {"words": []}, {"ids": [4]})
    assert told == [2.0, "model_failed", "model_failed", 4.0]


def test_one_long_item_is_not_what_all_others_are_padded_to() -> None:
    long, short = np.zeros(MOST_BYTES // 16, np.int64), np.zeros(1, np.int64)
    padding = Padding(("ids",))
    with pytest.raises(ValueError, match="64 MiB"):
        padding.stack([long, short, short])
    assert padding.stack([long])["ids"].nbytes == long.nbytes
    model = Means()
    runner, seen = runner_of(model), []
    model.infer = lambda batch: seen.append(batch["ids"].shape) or batch["ids"].sum(1)  # type: ignore[method-assign, func-returns-value]
    assert runner.infer_apart([short, long, short, short], runner.infer) == [0, 0, 0, 0]
    assert len(seen) > 1
    assert max(count * length * 8 for count, length in seen) <= MOST_BYTES


def test_an_ensemble_pads_too_and_finds_the_item_that_is_to_blame() -> None:
    class Both(Means):
        json = True
        Request = None  # type: ignore[assignment]

        def load(self) -> None:
            self.net = tb.ensemble(lambda batch: batch["ids"].sum(1), lambda batch: batch["mask"].sum(1))

        infer = tb.Model.infer

    model = Both()
    model.load()
    bodies = [msgspec.json.encode({"ids": ids}) for ids in ([1, 3], 7, [4])]
    report = runner_of(model).run(bodies, ask=lambda report: True)
    assert report is not None
    assert [outcome.code or msgspec.json.decode(outcome.body) for outcome in report.outcomes] == [
        3.0,
        "model_failed",
        2.5,
    ]


def test_what_pad_names_is_the_size_of_a_request() -> None:
    assert size_field(Means) == "ids"
    assert warm(Means()).size_field == "ids"

    class Declared(Means):
        pad: ClassVar[Any] = True
        size = "ids"

    assert answers(Declared(), {"ids": [1]}, {"ids": [2, 4]}) == [1.0, 3.0]

    class Prepared(Means):
        class Request(tb.Struct):
            text: str

    assert size_field(Prepared) is None


def test_what_pad_cannot_be_is_told() -> None:
    for pad, words in ((True, "the field that `size` names"), ("mask", 'such as "ids"'), ((1,), 'such as "ids"')):
        with pytest.raises(SetupError, match=words):
            check_class(type("Odd", (Means,), {"pad": pad}))


def test_a_model_that_takes_one_length_only_is_told_at_start() -> None:
    class Fixed(Means):
        def infer(self, batch: Any) -> Any:
            assert batch["ids"].shape[1] == 4
            return batch["ids"].sum(1)

    told = complaint(Fixed())
    assert "pad says that lengths vary, and infer() failed on half the length of the example" in told


def test_a_model_that_cannot_compute_two_lengths_together_is_told_the_cure_at_start() -> None:
    class Unpadded(Means):
        pad: ClassVar[Any] = False
        size = "ids"

        def prepare(self, request: Any) -> Any:
            return np.array(request.ids)

        def infer(self, batch: Any) -> Any:
            return np.asarray(batch).sum(1)

    told = complaint(Unpadded())
    assert told.startswith("unpadded: infer() failed on two requests of different length in one batch: ")
    assert 'let the server pad them: pad = "ids"' in told

    class Alone(Unpadded):
        max_batch = 1

    assert warm(Alone()).max_batch == 1

    class Misread(Means):
        def infer(self, batch: Any) -> Any:
            assert len(batch["ids"]) == 1 or batch["mask"].all()
            return batch["ids"].sum(1)

    assert "let infer() take what pad gives it" in complaint(Misread())


def test_a_text_that_may_not_be_shorter_is_not_tried() -> None:
    class Strict(tb.Model):
        size = "text"
        example: ClassVar[Any] = {"text": "four"}

        class Request(tb.Struct):
            text: str

        def prepare(self, request: Any) -> Any:
            if len(request.text) < 4:
                raise tb.BadInput("too short")
            return request.text

        def infer(self, batch: Any) -> Any:
            assert len(set(batch)) == 1
            return batch

    assert warm(Strict()).notes == []


@pytest.mark.parametrize("mask", ["mask", "attention_mask"])
def test_a_network_gets_the_mask_by_the_name_and_type_it_declares(mask: str) -> None:
    inputs = [TensorSpec("ids", "float32", (None, None)), TensorSpec(mask, "int64", (None, None))]
    batch = Padding(("ids",), inputs).stack([{"ids": [1.5, 2.5]}, {"ids": [3.5]}])
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
        "ids": ("float32", (2, 2)),
        mask: ("int64", (2, 2)),
    }
    assert list(Padding(("ids",), inputs[:1]).stack([[1.5]])) == ["ids"]
    assert Padding(("ids",), [TensorSpec("ids", "int64", (None, None))]).stack([[1.5]])["ids"].dtype == np.float64


def test_a_model_that_forgets_the_mask_is_warned() -> None:
    class Forgets(Means):
        def infer(self, batch: Any) -> Any:
            return batch["ids"].mean(1)

    assert warm(Means()).notes == []
    (told,) = warm(Forgets()).notes
    assert told.endswith("does infer() use the mask?")

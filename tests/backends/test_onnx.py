"""The ONNX backend: what goes in, what comes out, and sentences for what does not fit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.onnx_files import (
    BFLOAT16,
    INT64,
    STRING,
    UINT8,
    save_doubler,
    save_echo,
    save_sum_and_difference,
    save_with_weights_apart,
)

from timebound.backends.base import Backend, Place, TensorSpec, in_slot, opened_in
from timebound.backends.onnx import OnnxBackend, onnx
from timebound.errors import SetupError


@pytest.fixture
def doubler(tmp_path: Path) -> OnnxBackend:
    return onnx(save_doubler(tmp_path / "twice.onnx"))


def rows(count: int, width: int = 3) -> Any:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def test_an_onnx_file_is_a_backend_that_tells_its_signature(doubler: OnnxBackend) -> None:
    anything: object = doubler
    assert isinstance(anything, Backend)
    assert (doubler.kind, doubler.parallel, doubler.fixed_batch) == ("onnx", True, None)
    assert doubler.inputs == [TensorSpec("x", "float32", (None, 3))]
    assert [str(spec) for spec in doubler.outputs] == ["y: float32[any, 3]"]


@pytest.mark.parametrize("count", [1, 2, 64])
def test_a_batch_of_any_size_runs_at_once(doubler: OnnxBackend, count: int) -> None:
    np.testing.assert_array_equal(doubler(rows(count)), rows(count) * 2)


def test_one_input_may_be_given_by_name(doubler: OnnxBackend) -> None:
    np.testing.assert_array_equal(doubler({"x": rows(2)}), rows(2) * 2)


def test_several_inputs_and_outputs_go_by_name(tmp_path: Path) -> None:
    net = onnx(save_sum_and_difference(tmp_path / "both.onnx"))
    given = {"a": rows(4, 2), "b": np.ones((4, 2), np.float32), "extra": "ignored"}
    answer = net(given)
    assert list(answer) == ["sum", "difference"]
    np.testing.assert_array_equal(answer["sum"], rows(4, 2) + 1)
    np.testing.assert_array_equal(answer["difference"], rows(4, 2) - 1)


def test_several_inputs_must_be_given_as_a_dict(tmp_path: Path) -> None:
    net = onnx(save_sum_and_difference(tmp_path / "both.onnx"))
    signature = "a: float32[any, 2], b: float32[any, 2]"
    with pytest.raises(ValueError, match="takes several inputs, so give a dict") as caught:
        net(rows(1, 2))
    assert str(caught.value).endswith(signature)
    with pytest.raises(ValueError, match="b is missing") as caught:
        net({"a": rows(1, 2)})
    assert signature in str(caught.value)


def test_another_dtype_is_named_with_its_cure(doubler: OnnxBackend) -> None:
    with pytest.raises(ValueError, match="float64") as caught:
        doubler(rows(2).astype(np.float64))
    assert str(caught.value) == (
        "twice.onnx takes x: float32[any, 3], but prepare() gave float64: return .astype(np.float32) from prepare()"
    )


@pytest.mark.parametrize("shape", [(2, 4), (2,), (2, 3, 1), ()])
def test_another_shape_is_named_with_its_cure(doubler: OnnxBackend, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="has shape") as caught:
        doubler(np.zeros(shape, np.float32))
    assert str(caught.value) == (
        "twice.onnx takes x: float32[any, 3], but a batch of prepare()'s arrays has shape "
        f"{shape}: give items of shape (3,)"
    )


def test_a_free_dimension_takes_any_size(tmp_path: Path) -> None:
    net = onnx(save_doubler(tmp_path / "any.onnx", width="w"))
    assert net(rows(2, 5)).shape == (2, 5)
    with pytest.raises(ValueError, match=r"give items of shape \('any',\)"):
        net(np.zeros((2, 5, 1), np.float32))


def test_a_batch_that_is_no_array_is_named(doubler: OnnxBackend) -> None:
    with pytest.raises(ValueError, match="but got a list: its items have different shapes"):
        doubler([rows(1)[0], rows(1, 4)[0]])


def test_a_file_exported_for_one_item_runs_them_singly(tmp_path: Path) -> None:
    net = onnx(save_doubler(tmp_path / "one.onnx", batch=1))
    assert net.fixed_batch == 1
    for count in (1, 5):
        np.testing.assert_array_equal(net(rows(count)), rows(count) * 2)


def test_a_file_with_several_outputs_exported_for_one_item_keeps_items_in_order(tmp_path: Path) -> None:
    net = onnx(save_sum_and_difference(tmp_path / "one.onnx", batch=1))
    answer = net({"a": rows(3, 2), "b": rows(3, 2)})
    np.testing.assert_array_equal(answer["sum"], rows(3, 2) * 2)
    np.testing.assert_array_equal(answer["difference"], np.zeros((3, 2)))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_a_file_exported_for_four_items_takes_any_number_by_padding(tmp_path: Path, count: int) -> None:
    net = onnx(save_doubler(tmp_path / "four.onnx", batch=4))
    assert (net.batch_sizes, net.max_batch) == ((4,), 4)
    np.testing.assert_array_equal(net(rows(count)), rows(count) * 2)


def test_a_file_with_several_inputs_and_outputs_is_padded_row_by_row(tmp_path: Path) -> None:
    net = onnx(save_sum_and_difference(tmp_path / "three.onnx", batch=3))
    answer = net({"a": rows(4, 2) + 5, "b": rows(4, 2)})
    np.testing.assert_array_equal(answer["sum"], rows(4, 2) * 2 + 5)
    np.testing.assert_array_equal(answer["difference"], np.full((4, 2), 5.0))


@pytest.mark.parametrize(("kind", "dtype"), [(INT64, "int64"), (UINT8, "uint8")])
def test_other_dtypes_are_taken_as_they_are(tmp_path: Path, kind: int, dtype: str) -> None:
    net = onnx(save_echo(tmp_path / "echo.onnx", kind, ("n", 2)))
    assert net.inputs[0].dtype == dtype
    assert net(np.ones((3, 2), dtype)).dtype == dtype


def test_a_file_whose_numbers_numpy_has_none_for_is_told_with_its_cure(tmp_path: Path) -> None:
    file = save_echo(tmp_path / "brain.onnx", BFLOAT16, ("n", 2))
    with pytest.raises(SetupError, match=r"brain.onnx: input 'x' is bfloat16, .* inputs of float32"):
        OnnxBackend(file)


def test_texts_are_taken(tmp_path: Path) -> None:
    net = onnx(save_echo(tmp_path / "echo.onnx", STRING, ("n",)))
    assert net.inputs[0].dtype == "str"
    assert list(net(np.array(["a", "bc"]))) == ["a", "bc"]
    assert list(net(np.array(["a", "bc"], dtype=object))) == ["a", "bc"]


def test_several_threads_at_once_get_their_own_answers(doubler: OnnxBackend) -> None:
    batches = [rows(8) + number for number in range(64)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(doubler, batches))
    for batch, answer in zip(batches, answers, strict=True):
        np.testing.assert_array_equal(answer, batch * 2)


def sessions_used(net: OnnxBackend, slots: int) -> int:
    """How many different sessions answer in these slots; their answers must be right."""
    session: Any = net._session
    used: list[Any] = []
    opened, session._sessions = session._sessions, [Watched(each, used) for each in session._sessions]
    for slot in range(slots):
        with in_slot(slot):
            np.testing.assert_array_equal(net(rows(slot + 1)), rows(slot + 1) * 2)
    session._sessions = opened
    return len(set(map(id, used)))


class Watched:
    """A session that notes when it runs."""

    def __init__(self, session: Any, used: list[Any]) -> None:
        self._session, self._used = session, used

    def run(self, *given: Any) -> Any:
        self._used.append(self._session)
        return self._session.run(*given)


def test_inputs_of_any_length_have_a_session_for_each_slot(tmp_path: Path) -> None:
    net = onnx(save_doubler(tmp_path / "twice.onnx", width="w"))
    assert sessions_used(net, 3) == 1
    assert net.divide(3)
    assert sessions_used(net, 3) == 3
    assert not net.divide(3), "nothing is left to do"


def test_inputs_of_one_shape_and_large_files_share_a_session(
    tmp_path: Path, doubler: OnnxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not doubler.divide(2)
    large = onnx(save_doubler(tmp_path / "large.onnx", width="w"))
    monkeypatch.setattr("timebound.backends.onnxruntime.MUCH", 2 * large.path.stat().st_size - 1)
    assert not large.divide(3)
    assert large.divide(2)


def test_a_file_whose_weights_lie_elsewhere_is_shared(tmp_path: Path) -> None:
    net = onnx(save_with_weights_apart(tmp_path / "apart.onnx"))
    np.testing.assert_array_equal(net(rows(2)), rows(2) * 2)
    assert not net.divide(2)


def test_a_relative_path_starts_at_the_place_it_is_opened_in(tmp_path: Path) -> None:
    save_doubler(tmp_path / "nets" / "twice.onnx")
    with opened_in(Place(tmp_path, threads=2)):
        assert onnx("nets/twice.onnx").path == tmp_path / "nets" / "twice.onnx"


def test_a_missing_file_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with opened_in(Place(tmp_path)), pytest.raises(SetupError) as caught:
        onnx("gone.onnx")
    assert str(caught.value) == (
        f"model file not found: {tmp_path / 'gone.onnx'}; check the name, it is relative to {tmp_path}"
    )


def test_a_broken_file_is_named_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.onnx"
    file.write_bytes(b"no graph")
    with pytest.raises(SetupError) as caught:
        onnx(file)
    assert str(caught.value).startswith(f"onnxruntime cannot load {file}: ")
    assert "\n" not in str(caught.value)

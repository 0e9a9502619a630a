"""ONNX files on OpenVINO: the same answers in the same form, side by side, and sentences for what cannot be."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.onnx_files import FLOAT, INT64, save, save_doubler, save_echo, save_sum_and_difference

from timebound.backends.base import Place, TensorSpec, opened_in
from timebound.backends.ensemble import ensemble
from timebound.backends.onnx import onnx
from timebound.errors import SetupError
from timebound.machine.processor import has_bf16

pytest.importorskip("openvino", reason="the extra openvino is not installed")
needs_bf16 = pytest.mark.skipif(not has_bf16(), reason="this processor has no instructions for bf16")
PRECISIONS = ["openvino-f32", pytest.param("openvino-bf16", marks=needs_bf16)]


def rows(count: int, width: int = 3) -> Any:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


@pytest.mark.parametrize("engine", PRECISIONS)
@pytest.mark.parametrize("count", [1, 2, 64])
def test_the_same_file_gives_the_same_answers(tmp_path: Path, engine: str, count: int) -> None:
    file = save_doubler(tmp_path / "twice.onnx")
    net, reference = onnx(file, engine=engine), onnx(file)
    assert (net.inputs, net.outputs) == (reference.inputs, reference.outputs)
    np.testing.assert_allclose(net(rows(count)), reference(rows(count)), rtol=2**-7)


def test_several_inputs_and_outputs_go_by_name(tmp_path: Path) -> None:
    net = onnx(save_sum_and_difference(tmp_path / "both.onnx"), engine="openvino-f32")
    answer = net({"b": np.ones((4, 2), np.float32), "a": rows(4, 2)})
    assert list(answer) == ["sum", "difference"]
    np.testing.assert_array_equal(answer["difference"], rows(4, 2) - 1)


def test_a_tensor_that_goes_straight_through_keeps_its_names_and_numbers(tmp_path: Path) -> None:
    net = onnx(save_echo(tmp_path / "echo.onnx", INT64, ("n", 2)), engine="openvino-f32")
    assert net.inputs == [TensorSpec("x", "int64", (None, 2))]
    assert net.outputs == [TensorSpec("y", "int64", (None, 2))]
    np.testing.assert_array_equal(net(np.full((3, 2), 2**20)), np.full((3, 2), 2**20))


def test_a_file_exported_for_one_item_runs_them_singly(tmp_path: Path) -> None:
    net = onnx(save_doubler(tmp_path / "one.onnx", batch=1), engine="openvino-f32")
    np.testing.assert_array_equal(net(rows(5)), rows(5) * 2)


def test_arrays_that_cannot_be_written_to_or_lie_in_pieces_are_taken(tmp_path: Path) -> None:
    net = onnx(save_doubler(tmp_path / "twice.onnx"), engine="openvino-f32")
    frozen = rows(4)
    frozen.flags.writeable = False
    np.testing.assert_array_equal(net(frozen), rows(4) * 2)
    np.testing.assert_array_equal(net(rows(8)[::2]), rows(8)[::2] * 2)


def test_an_answer_stays_when_the_next_one_is_computed(tmp_path: Path) -> None:
    net = onnx(save_doubler(tmp_path / "twice.onnx"), engine="openvino-f32")
    first = net(rows(2))
    net(rows(2) + 100)
    np.testing.assert_array_equal(first, rows(2) * 2)


def test_hard_sigmoids_are_the_same_in_the_form_that_openvino_likes(tmp_path: Path) -> None:
    import onnx as onnx_library
    from onnx import helper

    shape = ("n", 5)
    for alpha, beta in ((1 / 6, 0.5), (0.2, 0.5)):  # only the first is a hard sigmoid as MobileNet has it
        file = save(tmp_path / "h.onnx", [("HardSigmoid", ["x"], ["y"])], {"x": (FLOAT, shape)}, {"y": (FLOAT, shape)})
        model = onnx_library.load(file)
        model.graph.node[0].attribute.extend(
            [helper.make_attribute("alpha", alpha), helper.make_attribute("beta", beta)]
        )
        onnx_library.save(model, file)
        x = np.linspace(-5, 5, 20, dtype=np.float32).reshape(4, 5)
        np.testing.assert_allclose(onnx(file, engine="openvino-f32")(x), onnx(file)(x), atol=1e-6)


def test_slots_get_their_own_answers_and_members_run_side_by_side(tmp_path: Path) -> None:
    with opened_in(Place(tmp_path, threads=1, slots=4, engine="openvino-f32")):
        nets = [onnx(save_doubler(tmp_path / f"{name}.onnx")) for name in "abc"]
    both = ensemble(*nets)
    batches = [rows(8) + number for number in range(64)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda batch: both.run_side_by_side(batch, 2), batches))
    for batch, answer in zip(batches, answers, strict=True):
        np.testing.assert_array_equal(answer, batch * 2)


def test_nothing_spins_while_nothing_is_asked(tmp_path: Path) -> None:
    with opened_in(Place(tmp_path, threads=2, slots=2, engine="openvino-f32")):
        net = onnx(save_doubler(tmp_path / "twice.onnx"))
    for _ in range(5):
        net(rows(64))
    before = time.process_time()
    threading.Event().wait(0.5)  # what the test is about: nobody asks meanwhile
    assert time.process_time() - before < 0.1


def test_bf16_is_refused_where_the_processor_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timebound.backends.openvino.has_bf16", lambda: False)
    with pytest.raises(SetupError, match=r"no instructions for bf16 .*; use openvino-f32 or onnxruntime$"):
        onnx(save_doubler(tmp_path / "twice.onnx"), engine="openvino-bf16")


def test_a_broken_file_is_named_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.onnx"
    file.write_bytes(b"no graph")
    with pytest.raises(SetupError) as caught:
        onnx(file, engine="openvino-f32")
    assert str(caught.value).startswith(f"OpenVINO cannot load {file}: ")
    assert "\n" not in str(caught.value)


def test_without_the_extra_it_is_named(tmp_path: Path) -> None:
    save_doubler(tmp_path / "twice.onnx")
    program = (
        "import sys\n"
        "sys.modules['openvino'] = None\n"  # as if it were not there
        "from timebound.backends.onnx import onnx\n"
        "onnx('twice.onnx', engine='openvino-f32')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "MissingExtra: openvino is not installed; install it with: pip install 'timebound[openvino]'" in done.stderr


def test_the_other_engine_is_not_imported(tmp_path: Path) -> None:
    save_doubler(tmp_path / "twice.onnx")
    program = (
        "import sys\n"
        "from timebound.backends.onnx import onnx\n"
        "onnx('twice.onnx', engine=sys.argv[1])\n"
        "print('openvino' in sys.modules, 'onnxruntime' in sys.modules)\n"
    )
    for engine, wanted in (("openvino-f32", "True False"), ("onnxruntime", "False True")):
        command = [sys.executable, "-c", program, engine]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == wanted

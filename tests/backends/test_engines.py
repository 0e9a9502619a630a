"""Which engine an ONNX file runs on: the call beats the option beats the model; and what the processor can do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.models.onnx_files import FLOAT, save, save_doubler

from timebound.backends.base import Place, opened_in
from timebound.backends.onnx import onnx
from timebound.errors import SetupError
from timebound.machine.processor import has_bf16
from timebound.target import load_models

INT8 = "onnxruntime-int8"
APP = """
import timebound as tb

class Plain(tb.Model):
    def load(self):
        self.net = tb.onnx("twice.onnx", int8="eight.onnx")

class Chosen(Plain):
    engine = "onnxruntime-int8"

class Fixed(tb.Model):
    def load(self):
        self.net = tb.onnx("twice.onnx", engine="onnxruntime")
"""


def files(folder: Path) -> None:
    """A network that doubles, and one that gives zeros in its place: who runs can be seen by the answer."""
    save_doubler(folder / "twice.onnx")
    spec = {"x": (FLOAT, ("n", 3))}
    save(folder / "eight.onnx", [("Sub", ["x", "x"], ["y"])], spec, {"y": (FLOAT, ("n", 3))})


def engines_of(folder: Path, engines: dict[str, str]) -> dict[str, str]:
    (folder / "app.py").write_text(APP)
    files(folder)
    models = load_models(folder / "app.py", threads=1, engines=engines)
    return {type(model).__name__: ",".join(each.engine for each in model.opened) for model in models}


def test_a_model_says_its_engine_and_the_option_beats_it(tmp_path: Path) -> None:
    assert engines_of(tmp_path, {}) == {"Plain": "onnxruntime", "Chosen": INT8, "Fixed": "onnxruntime"}
    assert engines_of(tmp_path, {"": "onnxruntime"})["Chosen"] == "onnxruntime"


def test_an_option_for_one_model_beats_that_for_all_and_a_call_beats_both(tmp_path: Path) -> None:
    found = engines_of(tmp_path, {"": INT8, "chosen": "onnxruntime"})
    assert found == {"Plain": INT8, "Chosen": "onnxruntime", "Fixed": "onnxruntime"}


def test_the_int8_file_runs_where_it_is_chosen(tmp_path: Path) -> None:
    files(tmp_path)
    with opened_in(Place(tmp_path, engine=INT8)):
        net = onnx("twice.onnx", int8="eight.onnx")
    np.testing.assert_array_equal(net(np.ones((2, 3), np.float32)), np.zeros((2, 3)))
    assert INT8 in net.engines


def test_int8_without_a_file_says_how_to_give_one(tmp_path: Path) -> None:
    files(tmp_path)
    with opened_in(Place(tmp_path, engine=INT8)), pytest.raises(SetupError, match=r'tb.onnx\("twice.onnx", int8='):
        onnx("twice.onnx")
    with opened_in(Place(tmp_path)):
        assert INT8 not in onnx("twice.onnx").engines


def test_an_engine_named_in_the_call_leaves_nothing_to_choose(tmp_path: Path) -> None:
    files(tmp_path)
    with opened_in(Place(tmp_path)):
        assert onnx("twice.onnx", engine="onnxruntime").engines == []


def test_an_unknown_engine_is_named_with_the_known_ones(tmp_path: Path) -> None:
    files(tmp_path)
    with opened_in(Place(tmp_path)), pytest.raises(SetupError, match=r"engine 'tensor' .* choose one of onnxruntime"):
        onnx("twice.onnx", engine="tensor")


def test_a_model_file_follows_the_option(tmp_path: Path) -> None:
    files(tmp_path)
    with pytest.raises(SetupError, match=r"needs an int8 file beside twice\.onnx"):
        load_models(tmp_path / "twice.onnx", threads=1, engines={"twice": INT8})


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 avx512_vnni", True),
        ("flags\t\t: fpu amx_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu avx2 avx512f avx512_vnni", False),
        ("model name\t: bf16", False),
    ],
)
def test_bf16_is_read_off_the_flags_of_the_processor(tmp_path: Path, line: str, wanted: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    assert has_bf16(tmp_path / "cpuinfo") is wanted
    assert not has_bf16(tmp_path / "missing")

"""Files of Keras become ONNX; those of TensorFlow are told how; what is not installed is said before any work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.convert.test_convert import complaint, run
from tests.live.serving import PATIENCE_S, Serving, clean_environment

from timebound.backends.onnx import onnx

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # Keras's own


@pytest.fixture(autouse=True)
def keras_is_there() -> None:
    keras()


def keras() -> Any:
    """Keras, which takes three seconds to come: only for who runs these tests."""
    os.environ["KERAS_BACKEND"] = "torch"
    return pytest.importorskip("keras")


def save(file: Path) -> Path:
    """A small network for pictures, channels last as Keras has them."""
    keras().utils.set_random_seed(0)
    layers = keras().layers
    keras().Sequential(
        [
            layers.Input((16, 16, 3), name="picture"),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    ).save(file)
    return file


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_a_file_of_keras_answers_the_same_as_onnx(tmp_path: Path, ending: str) -> None:
    file = save(tmp_path / f"net.{ending}")
    table = run(file, tmp_path / "net.onnx")
    assert "same answer on 16 samples" in table
    pictures = np.random.default_rng(0).random((5, 16, 16, 3), dtype=np.float32)
    wanted = keras().saving.load_model(file).predict_on_batch(pictures)
    got = onnx(tmp_path / "net.onnx", threads=1)(pictures)
    assert np.allclose(got, wanted, atol=1e-5)


def test_several_inputs_keep_their_kinds(tmp_path: Path) -> None:
    left, right = keras().Input((4,), name="left"), keras().Input((3,), name="right", dtype="int32")
    words = keras().layers.GlobalAveragePooling1D()(keras().layers.Embedding(10, 4)(right))
    score = keras().layers.Dense(1)(keras().layers.Concatenate()([left, words]))
    keras().Model([left, right], score).save(tmp_path / "two.keras")
    run(tmp_path / "two.keras", tmp_path / "two.onnx")
    net = onnx(tmp_path / "two.onnx", threads=1)
    assert [spec.dtype for spec in net.inputs] == ["float32", "int32"]


def test_code_in_a_file_of_keras_is_not_run(tmp_path: Path) -> None:
    keras().Sequential([keras().layers.Input((2,)), keras().layers.Lambda(lambda x: x * 2)]).save(
        tmp_path / "code.keras"
    )
    assert "keras cannot open code.keras: " in complaint(tmp_path / "code.keras", tmp_path / "net.onnx")


def test_a_file_that_is_none_of_keras_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.keras").write_bytes(b"nothing")
    assert "keras cannot open broken.keras: " in complaint(tmp_path / "broken.keras", tmp_path / "net.onnx")


def test_files_of_tensorflow_are_told_the_command_that_converts_them(tmp_path: Path) -> None:
    out = tmp_path / "net.onnx"
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").touch()
    said = complaint(tmp_path / "saved", out)
    assert f"python -m tf2onnx.convert --saved-model {tmp_path / 'saved'} --output model.onnx" in said
    (tmp_path / "net.tflite").touch()
    assert "tf2onnx.convert --tflite" in complaint(tmp_path / "net.tflite", out)


@pytest.mark.parametrize(
    ("name", "gone", "words"),
    [
        ("net.pt2", ["onnxscript"], "onnxscript is not installed"),
        ("net.pt2", ["torch", "onnx"], r"torch and onnx are not installed.*'timebound\[torch,convert\]'"),
        ("net.keras", ["keras"], r"keras is not installed.*'timebound\[keras\]'"),
        ("net.onnx", ["onnx"], r"onnx is not installed.*'timebound\[convert\]'"),
    ],
)
def test_what_is_missing_is_said_before_the_file_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, gone: list[str], words: str
) -> None:
    (tmp_path / name).write_bytes(b"not even a network")
    for package in gone:
        monkeypatch.setitem(sys.modules, package, None)
    said = complaint(tmp_path / name, tmp_path / "out.onnx", form="int8")
    assert re.search(words, said)


@pytest.mark.live
def test_a_file_of_keras_is_converted_and_served(tmp_path: Path) -> None:
    save(tmp_path / "net.keras")
    command = [sys.executable, "-m", "timebound.cli", "convert", "net.keras", "net.onnx"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with Serving(tmp_path / "net.onnx") as serving:
        answer = serving.http.post("/predictions/net", json={"picture": np.zeros((16, 16, 3)).tolist()})
    assert answer.status_code == 200, answer.text

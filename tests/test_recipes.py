"""A file that needs its library is refused with an app.py to copy; that app serves it."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx.parser
import pytest
import torch

import timebound as tb
from timebound.errors import NeedsProgram, SetupError
from timebound.target import check_target

NET = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x.sum(1)
"""


class Adds:
    """What every library's model is here: it answers the sum of each row."""

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def predict(self, batch: Any) -> Any:
        return batch.sum(axis=1)

    inplace_predict = predict_on_batch = predict

    def load_model(self, file: Any) -> Adds:
        return self

    def get_signature_runner(self) -> Adds:
        return self

    def get_input_details(self) -> dict[str, None]:
        return {"x": None}

    def __call__(self, x: Any) -> dict[str, Any]:
        return {"y": x.sum(axis=1)}


def opens(*args: Any, **options: Any) -> Adds:
    return Adds()


LIBRARIES: dict[str, dict[str, Any]] = {
    "joblib": {"load": opens},
    "skops": {},
    "skops.io": {"load": opens},
    "xgboost": {"Booster": Adds},
    "lightgbm": {"Booster": Adds},
    "catboost": {"CatBoost": Adds},
    "keras": {},
    "keras.models": {"load_model": opens},
    "ai_edge_litert": {},
    "ai_edge_litert.interpreter": {"Interpreter": Adds},
    "safetensors": {},
    "safetensors.torch": {"load_file": lambda file: {}},
}
"""What the recipes call of libraries that are not installed here."""


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, values in LIBRARIES.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


def write(file: Path) -> Path:
    if file.suffix in (".pkl", ".pickle"):
        file.write_bytes(pickle.dumps(Adds()))
    elif file.suffix in (".pth", ".ckpt"):
        torch.save({}, file)
    elif file.suffix == ".model":  # XGBoost's UBJSON
        file.write_bytes(b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner{}")
    elif file.suffix in (".json", ".txt"):
        file.write_text('{"learner":{}}' if file.suffix == ".json" else "tree\nversion=v4\n")
    else:
        file.touch()
    return file


ENDINGS = [
    "joblib", "pkl", "pickle", "pth", "ckpt", "safetensors", "keras", "h5", "hdf5", "ubj", "cbm", "tflite", "json",
    "txt", "JOBLIB", "bst", "model", "skops",
]  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.usefixtures("libraries")
def test_the_recipe_of_each_ending_serves_its_file(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / f"my model.{ending}")
    with pytest.raises(NeedsProgram) as refused:
        check_target(file)
    assert str(refused.value).startswith(f"cannot serve {file} by itself: a program must load it")
    (tmp_path / "app.py").write_text(refused.value.program)
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    first, second = tb.testing.batch(tmp_path, [{"features": [1, 2, 3, 4]}, {"features": [0, 0, 0, 0]}])
    assert (first, second) == ({"prediction": 10.0}, {"prediction": 0.0})
    check_target(tmp_path)


def test_a_folder_with_nothing_but_such_a_file_is_refused_with_its_recipe(tmp_path: Path) -> None:
    write(tmp_path / "model.joblib")
    with pytest.raises(NeedsProgram, match=r"cannot serve .*model\.joblib by itself: a program must load it"):
        check_target(tmp_path)


def test_the_command_that_a_refusal_names_writes_the_program(tmp_path: Path) -> None:
    file = write(tmp_path / "my model.joblib")
    tried = subprocess.run(
        [sys.executable, "-m", "timebound", "serve", str(file)], capture_output=True, text=True, check=False
    )
    assert tried.returncode == 2
    command = re.findall("timebound (serve .*?app.py'?)", tried.stderr)[0]
    subprocess.run(f"{sys.executable} -m timebound {command}", shell=True, check=False, stderr=subprocess.DEVNULL)
    written = (tmp_path / "app.py").read_text()
    assert written.startswith("# app.py (pip install joblib scikit-learn)\nfrom pathlib import Path\n")
    assert written == tried.stdout
    check_target(tmp_path / "app.py")


def test_a_saved_model_of_tensorflow_is_told_how_to_be_converted(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(SetupError, match=r"tf2onnx\.convert --saved-model"):
        check_target(tmp_path)


@pytest.mark.parametrize("name", ["settings.json", "notes.txt", "model.bin", "words.model"])
def test_other_files_get_no_recipe(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(SetupError, match=r"load it in an app\.py, or give a \.py, \.onnx"):
        check_target(tmp_path / name)


WORDS = """
import json
from pathlib import Path
from types import SimpleNamespace


class Tokenizer:
    def __init__(self, words):
        self.words = words

    @classmethod
    def from_file(cls, path):
        return cls(json.loads(Path(path).read_text())["model"]["vocab"])

    def encode(self, text):
        return SimpleNamespace(ids=[self.words[word] for word in text.split()])
"""
"""What the recipe uses of the package of that name, for a vocabulary of whole words."""

NETWORK = """
review (int64[n, m] input_ids, int64[n, m] mask) => (float[n, k] scores) {
  kept = Mul(input_ids, mask)
  axis = Constant<value = int64[1] {1}>()
  sums = ReduceSum<keepdims = 1>(kept, axis)
  good = Cast<to = 1>(sums)
  bad = Neg(good)
  scores = Concat<axis = 1>(bad, good)
}
"""


@pytest.mark.filterwarnings("ignore")
def test_the_recipe_of_a_tokeniser_and_an_onnx_network_answers_texts_of_several_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
    (app,) = re.findall(r"```python\n(# review\.py.*?)```", page, re.S)
    (tmp_path / "review.py").write_text(app)
    (tmp_path / "tokenizers.py").write_text(WORDS)
    vocabulary = {"a": 1, "fine": 5, "film": 1, "awful": -9}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": vocabulary}}))
    onnx.save(onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>' + NETWORK), tmp_path / "model.onnx")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    said = tb.testing.batch(tmp_path / "review.py", [{"text": "a fine film"}, {"text": "awful film"}, {"text": "fine"}])
    assert said == [{"label": "positive"}, {"label": "negative"}, {"label": "positive"}]
    (long,) = tb.testing.batch(tmp_path / "review.py", [{"text": "a " * 513}])
    assert isinstance(long, tb.BadInput)

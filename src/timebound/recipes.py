"""Model files that need their library, or code, to be opened: the app.py that serves each kind, to copy and paste."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from timebound.errors import NeedsProgram, SetupError


@dataclass(frozen=True)
class Recipe:
    """What an app.py says to open a kind of file, and to ask it about a batch."""

    needs: str
    """What to install."""
    imports: str
    load: str
    infer: str = ""
    """Nothing where `load` sets `self.net`."""
    or_else: str = ""
    """Another way, which may be better."""


_RUNS_CODE = "  # a pickle can run code: open only files of your own"
_TO_ONNX = "skl2onnx turns it into ONNX, which runs no code: `timebound new NAME --template sklearn` shows how"
_JOBLIB = Recipe(
    "joblib scikit-learn", "import joblib", f'self.model = joblib.load(HERE / "FILE"){_RUNS_CODE}',
    "self.model.predict(batch)", _TO_ONNX,
)  # fmt: skip
_PICKLE = Recipe(
    "what the file was made with", "import pickle",
    f'self.model = pickle.loads((HERE / "FILE").read_bytes()){_RUNS_CODE}', "self.model.predict(batch)",
    f"of scikit-learn's models, {_TO_ONNX}",
)  # fmt: skip
_WEIGHTS = Recipe(
    "'timebound[torch]'", "from net import Net  # the class of your network",
    'self.net = tb.torch(Net, weights="FILE", inputs="x: float32[any, 4]")',
    or_else="`torch.export.save` and `torch.jit.save` write files that are served as they are",
)  # fmt: skip
_SAFE_WEIGHTS = Recipe(
    "'timebound[torch]' safetensors",
    "from net import Net  # the class of your network\nfrom safetensors.torch import load_file",
    'net = Net()\nnet.load_state_dict(load_file(HERE / "FILE"))\nself.net = tb.torch(net, inputs="x: float32[any, 4]")',
)
_KERAS = Recipe(
    "keras, and torch or tensorflow", "import keras", 'self.model = keras.models.load_model(HERE / "FILE")',
    "self.model.predict_on_batch(batch)", "`timebound convert FILE model.onnx` makes an ONNX file of it",
)  # fmt: skip
_XGBOOST = Recipe(
    "xgboost", "import xgboost", 'self.model = xgboost.Booster(model_file=str(HERE / "FILE"))',
    "self.model.inplace_predict(batch)",
)  # fmt: skip
_SKOPS = Recipe(
    "skops scikit-learn", "import skops.io",
    'trusted: list[str] = []  # types of other libraries that it may open; skops.io.get_untrusted_types names them\n'
    'self.model = skops.io.load(HERE / "FILE", trusted=trusted)',
    "self.model.predict(batch)", _TO_ONNX,
)  # fmt: skip
_LIGHTGBM = Recipe(
    "lightgbm", "import lightgbm", 'self.model = lightgbm.Booster(model_file=str(HERE / "FILE"))',
    "self.model.predict(batch)",
)  # fmt: skip
_CATBOOST = Recipe(
    "catboost", "import catboost", 'self.model = catboost.CatBoost().load_model(str(HERE / "FILE"))',
    "self.model.predict(batch)",
)  # fmt: skip
_TFLITE = Recipe(
    "ai-edge-litert", "from ai_edge_litert.interpreter import Interpreter",
    'self.model = Interpreter(str(HERE / "FILE")).get_signature_runner()\n'
    "self.input = next(iter(self.model.get_input_details()))",
    "next(iter(self.model(**{self.input: batch}).values()))",
    "`python -m tf2onnx.convert --tflite FILE --output model.onnx` makes an ONNX file of it (pip install tf2onnx)",
)  # fmt: skip

_BY_ENDING = {
    ".joblib": _JOBLIB,
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
    ".pth": _WEIGHTS,
    ".ckpt": _WEIGHTS,
    ".safetensors": _SAFE_WEIGHTS,
    ".keras": _KERAS,
    ".h5": _KERAS,
    ".hdf5": _KERAS,
    ".ubj": _XGBOOST,
    ".bst": _XGBOOST,
    ".skops": _SKOPS,
    ".cbm": _CATBOOST,
    ".tflite": _TFLITE,
}
_BY_BEGINNING = {
    (".json", b'"learner"'): _XGBOOST,
    (".model", b"learner"): _XGBOOST,
    (".txt", b"tree\n"): _LIGHTGBM,
    (".model", b"tree\n"): _LIGHTGBM,
}
"""Endings that other files have too; what stands near the beginning tells."""
_LOOKED_AT = 4096

_APP = """\
# app.py (pip install NEEDS)
from pathlib import Path

IMPORTS
import numpy as np

import timebound as tb

HERE = Path(__file__).parent


class Mine(tb.Model):
    example = {"features": [0.0, 0.0, 0.0, 0.0]}  # as many numbers as the model takes

    class Request(tb.Struct):
        features: list[float]

    def load(self):
        LOAD

    def prepare(self, request):
        return np.array(request.features, np.float32)
INFER
    def finish(self, output, request):
        return {"prediction": output.tolist()}
"""
_INFER = """
    def infer(self, batch):  # a whole batch: [items, features]
        return ANSWER
"""
_SAVED_MODEL = (
    "cannot serve {path}: it is a SavedModel of TensorFlow. Convert it, and serve the ONNX file (pip install tf2onnx "
    "tensorflow):\n\n    python -m tf2onnx.convert --saved-model {path} --output model.onnx\n"
    "    timebound serve model.onnx"
)


def recipe_of(path: Path) -> Recipe | None:
    """How to serve this kind of file, if it is one that is known."""
    found = _BY_ENDING.get(path.suffix.lower())
    if found is None and any(path.suffix == suffix for suffix, _ in _BY_BEGINNING):
        try:
            with path.open("rb") as file:
                beginning = file.read(_LOOKED_AT)
        except OSError:
            return None
        kinds = _BY_BEGINNING.items()
        return next((each for (ending, words), each in kinds if path.suffix == ending and words in beginning), None)
    return found


def app_for(path: Path, recipe: Recipe) -> str:
    """The text of an app.py beside the file that serves it."""
    infer = _INFER.replace("ANSWER", recipe.infer) if recipe.infer else ""
    text = _APP.replace("NEEDS", recipe.needs).replace("IMPORTS", recipe.imports).replace("INFER", infer)
    if "HERE" not in recipe.load:
        text = text.replace("from pathlib import Path\n\n", "").replace("HERE = Path(__file__).parent\n\n\n", "\n")
    return text.replace("LOAD", recipe.load.replace("\n", "\n        ")).replace("FILE", path.name)


def refusal(path: Path) -> SetupError | None:
    """Why this file or folder is not served as it is, with the program that serves it; None where none is known."""
    if (path / "saved_model.pb").is_file():
        return SetupError(_SAVED_MODEL.format(path=path))
    recipe = recipe_of(path) if path.is_file() else None
    if recipe is None:
        return None
    app = path.with_name("app.py")
    also = f". Or: {recipe.or_else}".replace("FILE", str(path)) if recipe.or_else else ""
    return NeedsProgram(
        f"cannot serve {path} by itself: a program must load it. This writes one, which you then serve: "
        f"timebound serve {quote(str(path))} > {quote(str(app))}{also}",
        app_for(path, recipe),
    )

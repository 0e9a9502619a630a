"""The work that the bare loop, Timebound and FastAPI all do, and the samples to do it on."""

import base64
import binascii
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

# Where the servers under test find what models.py built.
MODELS_ENV = "BENCH_MODELS"
MODEL_FILES = ("narrow.onnx", "middle.onnx", "wide.onnx")
SAMPLES_FILE = "pictures.json"

SIDE = 96
ECHO_VALUES = [0.5, 1.25, -2.0, 3.75, 4.0, -5.5, 6.25, 7.0]
ECHO_SUM = sum(ECHO_VALUES)
# What an ensemble with a fallback answers without its networks.
FALLBACK_ANSWER = -1

_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32) * 255
_SCALE = 1 / (np.array([0.229, 0.224, 0.225], dtype=np.float32) * 255)


@dataclass(frozen=True)
class Sample:
    """One picture as it travels, and the class that the first, the first two and all networks give it."""

    image: str
    answers: list[int]

    @property
    def answer(self) -> int:
        """What all networks together say."""
        return self.answers[-1]


def default_folder() -> Path:
    """The cache folder that models.py fills when no other is named."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "timebound-bench"


def models_folder() -> Path:
    """The folder named by BENCH_MODELS."""
    return Path(os.environ.get(MODELS_ENV) or default_folder())


def model_paths() -> list[Path]:
    """The ensemble's files."""
    return [models_folder() / name for name in MODEL_FILES]


def load_samples(folder: Path) -> list[Sample]:
    """Read the pictures that models.py wrote."""
    return [Sample(**entry) for entry in json.loads((folder / SAMPLES_FILE).read_text())]


def decode(image: str) -> Array:
    """Turn a base64 PNG into one normalised 3 x 96 x 96 input; raises ValueError when it is none."""
    from PIL import Image  # here, because the echo servers have no use for it

    try:
        with Image.open(io.BytesIO(base64.b64decode(image, validate=True))) as picture:
            pixels = np.asarray(picture.convert("RGB").resize((SIDE, SIDE)), dtype=np.float32)
    except (binascii.Error, OSError, SyntaxError) as error:  # Pillow: SyntaxError for a broken PNG
        raise ValueError("image must be a base64 encoded picture") from error
    return np.ascontiguousarray(((pixels - _MEAN) * _SCALE).transpose(2, 0, 1))


def open_sessions(paths: Sequence[Path]) -> list[Any]:
    """One onnxruntime session per file: one thread, no spinning, so that processes share cores fairly."""
    import onnxruntime as ort  # here, because the echo servers and the load client have no use for it

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return [ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]) for path in paths]


def mean_scores(sessions: Sequence[Any], batch: Array) -> Array:
    """The mean of the members' softmax outputs, one row per picture."""
    total: Array = sessions[0].run(None, {"image": batch})[0]
    for session in sessions[1:]:
        total = total + session.run(None, {"image": batch})[0]
    return total / np.float32(len(sessions))

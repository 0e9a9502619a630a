"""Trains the small network that `timebound new --template onnx` begins with, on scikit-learn's digits.

    pip install scikit-learn
    nice .venv/bin/python scripts/train_digits.py

Writes src/timebound/scaffold/digits.onnx and prints its held-out accuracy. Everything is seeded and runs on one BLAS
thread, so two runs on one machine write the same bytes. Data: Optical Recognition of Handwritten Digits, E. Alpaydin
and C. Kaynak, 1998, UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

SEED = 8
OUT = Path(__file__).parents[1] / "src" / "timebound" / "scaffold" / "digits.onnx"


def split() -> tuple[Floats, Floats, Labels, Labels]:
    """Training and held-out images scaled to 0..1, [n, 8, 8], and their labels; 75 to 25, every digit alike."""
    images, labels = load_digits(return_X_y=True)
    scaled = (images.reshape(-1, 8, 8) / 16).astype(np.float32)
    parts = train_test_split(scaled, labels, test_size=0.25, random_state=SEED, stratify=labels)
    return parts[0], parts[1], parts[2], parts[3]


def augment(images: Floats, rng: np.random.Generator) -> Floats:
    """Each image turned, slanted, narrowed, moved and inked a little differently."""
    n = len(images)
    turn, slant = np.deg2rad(rng.uniform(-12, 12, n)), rng.uniform(-0.2, 0.2, n)
    # Drawings are often narrower than the dataset's digits and seldom wider.
    wide, high = rng.uniform(0.75, 1.1, n), rng.uniform(0.9, 1.05, n)
    cos, sin = np.cos(turn), np.sin(turn)
    y, x = np.meshgrid(np.arange(8) - 3.5, np.arange(8) - 3.5, indexing="ij")
    rows = (sin / high)[:, None, None] * x + (cos / high)[:, None, None] * y
    columns = (cos / wide)[:, None, None] * x - (sin / wide)[:, None, None] * y + slant[:, None, None] * rows
    rows = rows + 3.5 + bends(n, rng)
    columns = columns + 3.5 + bends(n, rng)
    inked = bilinear(images, rows, columns) ** rng.uniform(0.75, 1.3, (n, 1, 1))
    return np.clip(inked, 0, 1).astype(np.float32)


def bends(n: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """A smooth field of displacements for each image, in pixels: drawn on a 3x3 grid, read between."""
    grid = rng.normal(0, 0.3, (n, 3, 3)) + rng.uniform(-0.3, 0.3, (n, 1, 1))
    place = np.linspace(0, 2, 8)
    between = np.maximum(0, 1 - np.abs(place[:, None] - np.arange(3)))
    return np.asarray(between @ grid @ between.T)


def bilinear(images: Floats, rows: npt.NDArray[Any], columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The images read at fractional places; outside of them there is no ink."""
    padded = np.pad(images, ((0, 0), (1, 2), (1, 2)))
    rows, columns = np.clip(rows + 1, 0, 9), np.clip(columns + 1, 0, 9)
    top, left = rows.astype(int), columns.astype(int)
    down, right = rows - top, columns - left
    which = np.arange(len(images))[:, None, None]
    upper = padded[which, top, left] * (1 - right) + padded[which, top, left + 1] * right
    lower = padded[which, top + 1, left] * (1 - right) + padded[which, top + 1, left + 1] * right
    return np.asarray(upper * (1 - down) + lower * down)


def enlarge(images: Floats, labels: Labels, copies: int, rng: np.random.Generator) -> tuple[Floats, Labels]:
    """The images as they are and `copies` augmented versions of each."""
    stack = [images, *(augment(images, rng) for _ in range(copies))]
    return np.concatenate(stack), np.tile(labels, copies + 1)


def graph(name: str, nodes: Sequence[Any], weights: dict[str, npt.NDArray[Any]]) -> Any:
    """A checked model from `pixels` [batch, 1, 8, 8] to `probabilities` [batch, 10]."""
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 1, 8, 8])
    probabilities = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])
    single = {key: value if value.dtype == np.int64 else value.astype(np.float32) for key, value in weights.items()}
    constants = [numpy_helper.from_array(np.ascontiguousarray(value), key) for key, value in single.items()]
    model = helper.make_model(
        helper.make_graph(nodes, f"digits-{name}", [pixels], [probabilities], constants),
        opset_imports=[helper.make_opsetid("", 17)],
        producer_name="timebound",
        ir_version=8,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    """One operator; its inputs are named in one string."""
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def train_mlp(images: Floats, labels: Labels) -> Any:
    """Two hidden layers on the plain pixels."""
    many, many_labels = enlarge(images, labels, 19, np.random.default_rng(SEED + 1))
    net = MLPClassifier((128, 64), alpha=0.1, batch_size=256, max_iter=30, random_state=SEED)
    with warnings.catch_warnings():
        # A fixed number of epochs is meant.
        warnings.simplefilter("ignore", ConvergenceWarning)
        net.fit(many.reshape(-1, 64), many_labels)
    nodes = [
        node("Flatten", "pixels", "flat"),
        node("Gemm", "flat w0 b0", "h0"),
        node("Relu", "h0", "r0"),
        node("Gemm", "r0 w1 b1", "h1"),
        node("Relu", "h1", "r1"),
        node("Gemm", "r1 w2 b2", "logits"),
        node("Softmax", "logits", "probabilities", axis=1),
    ]
    weights = {f"w{i}": w for i, w in enumerate(net.coefs_)} | {f"b{i}": b for i, b in enumerate(net.intercepts_)}
    return graph("mlp", nodes, weights)


def main() -> None:
    """Train, export, report."""
    images, held, labels, held_labels = split()
    OUT.write_bytes(train_mlp(images, labels).SerializeToString(deterministic=True))
    session = onnxruntime.InferenceSession(OUT, providers=["CPUExecutionProvider"])
    rows = session.run(None, {"pixels": held[:, None]})[0]
    accuracy = float(np.mean(rows.argmax(axis=1) == held_labels))
    print(f"{OUT.name}: {accuracy:.4f} of {len(held)} held-out digits, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()

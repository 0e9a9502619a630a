"""Train the three members of the `timebound demo` ensemble on scikit-learn's digits and export them to ONNX.

    nice .venv/bin/python scripts/train_demo.py [--out src/timebound/demo]

Writes models/{conv,mlp,rbf}.onnx and samples.json and prints the held-out accuracy of each member and of the
ensemble. Everything is seeded and runs on one BLAS thread, so two runs on one machine write the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Predict = Callable[[Floats], Floats]

SEED = 8
OUT = Path(__file__).parents[1] / "src" / "timebound" / "demo"
# Best first (cross-validated on the training images): the ensemble may stop after any member.
ORDER = ("conv", "mlp", "rbf")


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


def softmax(logits: npt.NDArray[Any]) -> Floats:
    """Rows to probabilities."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True), dtype=np.float32)


# --- ONNX ------------------------------------------------------------------------------------------------------


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


# --- conv: two convolutions, trained in plain numpy ------------------------------------------------------------


def patches(x: Floats) -> Floats:
    """[n, h, w, c] to [n * h * w, c * 9]: what a padded 3x3 convolution sees at each place."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.ascontiguousarray(windows).reshape(-1, x.shape[3] * 9)


def unpatch(d_patches: Floats, shape: tuple[int, int, int, int]) -> Floats:
    """The gradient of `patches`: every pixel collects from the nine places that saw it."""
    n, high, wide, channels = shape
    spread = d_patches.reshape(n, high, wide, channels, 3, 3)
    padded = np.zeros((n, high + 2, wide + 2, channels), np.float32)
    for row in range(3):
        for column in range(3):
            padded[:, row : row + high, column : column + wide] += spread[..., row, column]
    return np.asarray(padded[:, 1:-1, 1:-1])


class Conv:
    """conv 3x3 - relu - conv 3x3 - relu - max pool 2x2 - dense - softmax, with its own gradient."""

    epochs, batch, peak_rate, decay, dropout = 80, 64, 4e-3, 1e-4, 0.3

    def __init__(self, rng: np.random.Generator, first: int = 16, second: int = 32) -> None:
        def he(fan_in: int, fan_out: int) -> Floats:
            return np.asarray(rng.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in), np.float32)

        self.rng, self.first, self.second = rng, first, second
        self.weights = [he(9, first), he(first * 9, second), he(second * 16, 10)]
        self.biases = [np.zeros(size, np.float32) for size in (first, second, 10)]

    def forward(self, images: Floats, keep: Floats | None = None) -> tuple[Floats, tuple[Floats, ...]]:
        """Probabilities, and what the gradient needs."""
        n = len(images)
        seen_1 = patches(images[..., None])
        map_1 = np.maximum(seen_1 @ self.weights[0] + self.biases[0], 0).reshape(n, 8, 8, -1)
        seen_2 = patches(map_1)
        map_2 = np.maximum(seen_2 @ self.weights[1] + self.biases[1], 0).reshape(n, 4, 2, 4, 2, -1)
        pooled = map_2.max(axis=(2, 4))
        flat = pooled.reshape(n, -1) if keep is None else pooled.reshape(n, -1) * keep
        return softmax(flat @ self.weights[2] + self.biases[2]), (seen_1, map_1, seen_2, map_2, pooled, flat)

    def gradient(self, images: Floats, labels: Labels) -> list[Floats]:
        """Of the mean cross entropy, in the order weights then biases."""
        n = len(images)
        keep = (self.rng.random((n, self.second * 16)) > self.dropout).astype(np.float32) / (1 - self.dropout)
        out, (seen_1, map_1, seen_2, map_2, pooled, flat) = self.forward(images, keep)
        d_out = (out - np.eye(10, dtype=np.float32)[labels]) / n
        d_pooled = (d_out @ self.weights[2].T * keep).reshape(n, 4, 1, 4, 1, -1)
        # A maximum at zero means that relu was shut there, so ties need no care.
        winners = (map_2 == pooled[:, :, None, :, None, :]) & (map_2 > 0)
        d_2 = (d_pooled * winners).reshape(-1, self.second)
        d_map_1 = unpatch(d_2 @ self.weights[1].T, (n, 8, 8, self.first))
        d_1 = (d_map_1 * (map_1 > 0)).reshape(-1, self.first)
        weights = [seen_1.T @ d_1, seen_2.T @ d_2, flat.T @ d_out]
        return [*weights, *(np.asarray(each.sum(axis=0)) for each in (d_1, d_2, d_out))]

    def fit(self, images: Floats, labels: Labels) -> None:
        """Adam with a cosine rate; a fresh augmentation every epoch."""
        parameters = [*self.weights, *self.biases]
        mean = [np.zeros_like(each) for each in parameters]
        square = [np.zeros_like(each) for each in parameters]
        steps = self.epochs * -(-len(images) // self.batch)
        for step, (some, some_labels) in enumerate(self._batches(images, labels), start=1):
            rate = self.peak_rate * 0.5 * (1 + np.cos(np.pi * step / steps))
            for index, slope in enumerate(self.gradient(some, some_labels)):
                mean[index] += 0.1 * (slope - mean[index])
                square[index] += 0.001 * (slope * slope - square[index])
                move = (mean[index] / (1 - 0.9**step)) / (np.sqrt(square[index] / (1 - 0.999**step)) + 1e-8)
                parameters[index] -= (rate * (move + self.decay * parameters[index])).astype(np.float32)

    def _batches(self, images: Floats, labels: Labels) -> Iterator[tuple[Floats, Labels]]:
        for _ in range(self.epochs):
            order = self.rng.permutation(len(images))
            moved = augment(images[order], self.rng)
            for start in range(0, len(order), self.batch):
                part = slice(start, start + self.batch)
                yield moved[part], labels[order[part]]

    def export(self) -> Any:
        """ONNX keeps channels first, here they are last: kernels and the dense layer are turned."""
        kernels = [w.reshape(-1, 3, 3, w.shape[1]).transpose(3, 0, 1, 2) for w in self.weights[:2]]
        dense = self.weights[2].reshape(4, 4, self.second, 10).transpose(2, 0, 1, 3).reshape(-1, 10)
        nodes = [
            node("Conv", "pixels k1 b1", "c1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("Relu", "c1", "r1"),
            node("Conv", "r1 k2 b2", "c2", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("Relu", "c2", "r2"),
            node("MaxPool", "r2", "pooled", kernel_shape=[2, 2], strides=[2, 2]),
            node("Flatten", "pooled", "flat"),
            node("Gemm", "flat w3 b3", "logits"),
            node("Softmax", "logits", "probabilities", axis=1),
        ]
        names = ("k1", "k2", "w3", "b1", "b2", "b3")
        return graph("conv", nodes, dict(zip(names, [*kernels, dense, *self.biases], strict=True)))


def train_conv(images: Floats, labels: Labels) -> tuple[Any, Predict]:
    """The convolutional member: its model and its own prediction."""
    net = Conv(np.random.default_rng(SEED))
    net.fit(images, labels)
    return net.export(), lambda held: net.forward(held)[0]


# --- mlp and rbf: scikit-learn ---------------------------------------------------------------------------------


def train_mlp(images: Floats, labels: Labels) -> tuple[Any, Predict]:
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
    return graph("mlp", nodes, weights), lambda held: np.asarray(net.predict_proba(held.reshape(-1, 64)))


def train_rbf(images: Floats, labels: Labels) -> tuple[Any, Predict]:
    """Likeness to 400 landmark digits (a Nystroem kernel map), then logistic regression."""
    gamma = 0.25
    many, many_labels = enlarge(images, labels, 14, np.random.default_rng(SEED + 2))
    kernel = Nystroem(kernel="rbf", gamma=gamma, n_components=400, random_state=SEED)
    features = kernel.fit_transform(many.reshape(-1, 64).astype(np.float64))
    linear = LogisticRegression(C=10.0, max_iter=300).fit(features, many_labels)
    # |x - c|^2 = |x|^2 - 2 x.c + |c|^2; Nystroem's whitening is linear and folds into the last layer.
    landmarks = kernel.components_
    nodes = [
        node("Flatten", "pixels", "flat"),
        node("Mul", "flat flat", "squares"),
        node("ReduceSum", "squares axis", "length", keepdims=1),
        node("Gemm", "flat landmarks lengths", "apart", alpha=-2.0),
        node("Add", "apart length", "distance"),
        node("Mul", "distance minus_gamma", "exponent"),
        node("Exp", "exponent", "likeness"),
        node("Gemm", "likeness w b", "logits"),
        node("Softmax", "logits", "probabilities", axis=1),
    ]
    weights = {
        "axis": np.array([1], np.int64),
        "landmarks": landmarks.T,
        "lengths": (landmarks**2).sum(axis=1),
        "minus_gamma": np.array(-gamma),
        "w": kernel.normalization_.T @ linear.coef_.T,
        "b": linear.intercept_,
    }

    def predict(held: Floats) -> Floats:
        return np.asarray(linear.predict_proba(kernel.transform(held.reshape(-1, 64).astype(np.float64))))

    return graph("rbf", nodes, weights), predict


# --- files and figures -----------------------------------------------------------------------------------------


def run(path: Path, images: Floats) -> Floats:
    """What onnxruntime makes of a file."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"pixels": images[:, None]})[0])


def drawing(image: Floats) -> str:
    """A held-out digit as it might be drawn: 64x64 PNG, black ink on white, as base64."""
    ink = Image.fromarray((image * 255).astype(np.uint8)).resize((48, 48), Image.Resampling.BICUBIC)
    page = np.pad(np.asarray(ink), 8)
    buffer = io.BytesIO()
    # Sixteen greys are all there is to see, and they halve the file.
    Image.fromarray(255 - page // 17 * 17).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def write_samples(path: Path, held: Floats, labels: Labels) -> None:
    """The most typical held-out image of each digit: nearest to their mean, whatever the models make of it."""
    samples = []
    for digit in range(10):
        alike = held[labels == digit]
        nearest = int(np.square(alike - alike.mean(axis=0)).sum(axis=(1, 2)).argmin())
        samples.append({"label": digit, "image": drawing(alike[nearest])})
    path.write_text(json.dumps(samples, indent=1) + "\n")


def main() -> None:
    """Train, export, check, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=OUT, help="folder for models/ and samples.json")
    out: Path = parser.parse_args().out
    (out / "models").mkdir(parents=True, exist_ok=True)

    images, held, labels, held_labels = split()
    print(f"{len(images)} training images, {len(held)} held out")
    trainers = {"conv": train_conv, "mlp": train_mlp, "rbf": train_rbf}
    answers: list[Floats] = []
    total = 0
    for name in ORDER:
        model, predict = trainers[name](images, labels)
        path = out / "models" / f"{name}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        answers.append(run(path, held))
        difference = float(np.abs(answers[-1] - predict(held)).max())
        if difference > 1e-5:
            raise SystemExit(f"{path.name}: onnxruntime differs from the trained model by {difference:.1e}")
        total += path.stat().st_size
        accuracy = float(np.mean(answers[-1].argmax(axis=1) == held_labels))
        print(f"{name:5} {accuracy:.4f}  {path.stat().st_size:7,} bytes  differs by {difference:.0e}")
    for members in range(1, len(ORDER) + 1):
        mean = np.mean(answers[:members], axis=0)
        print(f"{members} of {len(ORDER)} members {np.mean(mean.argmax(axis=1) == held_labels):.4f}")
    write_samples(out / "samples.json", held, held_labels)
    print(f"models {total:,} bytes, samples {(out / 'samples.json').stat().st_size:,} bytes")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()

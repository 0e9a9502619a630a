"""The networks of `models.py` with a last layer that was fitted: eight kinds of pictures, by the colour of the ground.

Their bodies stay random, so they cost the same; but what they answer no longer hangs on the last digits, as it does
with a random last layer. With them one can ask whether an engine of less precision still answers the same.
"""

import argparse
import base64
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from PIL import Image, ImageDraw

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.workload import MODEL_FILES, SAMPLES_FILE, Array, Sample, decode, default_folder, open_sessions

KINDS = 8
TAUGHT, TRIED = 480, 160
SAMPLES = 64
RIDGE = 1.0
# Turns a fit to 0 and 1 into scores: about 0.99 for a picture that fits one kind and no other.
STEEP = 7.0


def folder_of(models: Path) -> Path:
    """Where these files lie, in the folder of the benchmark's models."""
    return models / "fitted"


def draw(random: np.random.Generator, kind: int) -> str:
    """A base64 PNG: each bit of `kind` says whether a colour of the ground is bright; on it four shapes, and noise."""
    bright = np.array([kind >> bit & 1 for bit in range(3)], bool)
    behind = np.where(bright, random.integers(185, 256, 3), random.integers(0, 71, 3))
    pixels = behind + random.normal(0, 6, (96, 96, 3))
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    canvas = ImageDraw.Draw(image)
    for _ in range(4):
        left, top, wide, high = (int(edge) for edge in (*random.integers(0, 80, 2), *random.integers(8, 40, 2)))
        shape = canvas.ellipse if random.random() < 0.5 else canvas.rectangle
        shape((left, top, left + wide, top + high), fill=tuple(int(value) for value in random.integers(0, 256, 3)))
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def fit(features: Array, kinds: NDArray[np.int64]) -> tuple[Array, Array]:
    """Weights and bias by ridge regression, on features that are centred and scaled."""
    middle, spread = features.mean(0), np.maximum(features.std(0), 1e-6)
    scaled = (features - middle) / spread
    wanted = np.eye(KINDS)[kinds] - 1 / KINDS
    inner = scaled @ scaled.T + RIDGE * features.shape[1] * np.eye(len(features))
    weights = STEEP * (scaled.T @ np.linalg.solve(inner, wanted)).T / spread
    return weights.astype(np.float32), (-weights @ middle).astype(np.float32)


def refit(source: Path, path: Path, inputs: Array, kinds: NDArray[np.int64]) -> None:
    """The same network with a last layer for these kinds; the classes beyond them get no share."""
    model = onnx.load(source)
    last = next(node for node in reversed(model.graph.node) if node.op_type == "Gemm")
    features = onnx.ModelProto()
    features.CopyFrom(model)
    del features.graph.output[:]
    features.graph.output.add().name = last.input[0]
    onnx.save(features, path)
    (session,) = open_sessions([path])
    seen = np.concatenate([session.run(None, {"image": part})[0] for part in np.array_split(inputs, 16)])
    weights, bias = fit(seen, kinds)
    for weight in model.graph.initializer:
        if weight.name in last.input[1:]:
            values = numpy_helper.to_array(weight).copy()
            values[:KINDS] = weights if weight.name == last.input[1] else bias
            values[KINDS:] = 0 if weight.name == last.input[1] else -2 * STEEP
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(model, path)


def build(models: Path) -> float:
    """Write the files beside those of `models.py`; returns how many new pictures all three together get right."""
    folder, random = folder_of(models), np.random.default_rng(11)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = random.integers(0, KINDS, TAUGHT + TRIED)
    images = [draw(random, int(kind)) for kind in kinds]
    inputs = np.stack([decode(image) for image in images])
    for name in MODEL_FILES:
        refit(models / name, folder / name, inputs[:TAUGHT], kinds[:TAUGHT])
    samples = list(_answered(folder, images[TAUGHT:], inputs[TAUGHT:]))
    (folder / SAMPLES_FILE).write_text(json.dumps([asdict(sample) for sample in samples[:SAMPLES]]))
    right = [sample.answer == kind for sample, kind in zip(samples, kinds[TAUGHT:], strict=True)]
    return float(np.mean(right))


def _answered(folder: Path, images: list[str], inputs: Array) -> Iterator[Sample]:
    sessions = open_sessions([folder / name for name in MODEL_FILES])
    for image, picture in zip(images, inputs, strict=True):
        scores = np.cumsum([session.run(None, {"image": picture[None]})[0][0] for session in sessions], axis=0)
        yield Sample(image, [int(row.argmax()) for row in scores])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder(), help="default: %(default)s")
    print(f"{build(parser.parse_args().folder):.3f} of {TRIED} new pictures right")


if __name__ == "__main__":
    main()

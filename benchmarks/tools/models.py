"""Builds the image ensemble: three MobileNetV3-like networks with random weights, and pictures."""

import argparse
import base64
import io
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from PIL import Image, ImageDraw

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.graph import Graph
from benchmarks.tools.workload import (
    MODEL_FILES,
    SAMPLES_FILE,
    SIDE,
    Array,
    Sample,
    decode,
    default_folder,
    mean_scores,
    open_sessions,
)

CLASSES = 800
SAMPLES = 64
# Two best classes closer than this could swap places between batch sizes: a right answer would look wrong.
CLEAR_MARGIN = 1e-4
# Standard deviation of a picture's noise, of 255; decides how far PNG can compress.
NOISE = 0.55
# Raised when the files' content changes, so that an old cache is built again.
VERSION = "3"


@dataclass(frozen=True)
class Stage:
    """One inverted residual block; `squeeze` is squeeze-and-excite, `swish` hard-swish instead of ReLU."""

    kernel: int
    expanded: int
    channels: int
    squeeze: bool
    swish: bool
    stride: int


# The large MobileNetV3 (Howard et al. 2019, table 1), but the last blocks keep 6 x 6 pixels: more work per
# weight, so that three networks of 3 to 5 ms stay at the size of mobile models.
STAGES = (
    Stage(3, 16, 16, False, False, 1),
    Stage(3, 64, 24, False, False, 2),
    Stage(3, 72, 24, False, False, 1),
    Stage(5, 72, 40, True, False, 2),
    Stage(5, 120, 40, True, False, 1),
    Stage(5, 120, 40, True, False, 1),
    Stage(3, 240, 80, False, True, 2),
    Stage(3, 200, 80, False, True, 1),
    Stage(3, 184, 80, False, True, 1),
    Stage(3, 184, 80, False, True, 1),
    Stage(3, 480, 112, True, True, 1),
    Stage(3, 672, 112, True, True, 1),
    Stage(5, 672, 160, True, True, 1),
    Stage(5, 960, 160, True, True, 1),
    Stage(5, 960, 160, True, True, 1),
)
# Width of each file in MODEL_FILES: about 3, 4 and 5 ms per picture on one core of the reference machine.
WIDTHS = (1.25, 1.4, 1.6)


class Network(Graph):
    """Each method adds one layer and returns the name of its output."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.channels = 3

    def conv(self, x: str, channels: int, kernel: int = 1, stride: int = 1, depthwise: bool = False) -> str:
        """Convolution with bias; He initialised, as if batch norm were folded in already."""
        inputs = 1 if depthwise else self.channels
        scale = np.sqrt(2 / (inputs * kernel * kernel))
        values = self._random.normal(0, scale, (channels, inputs, kernel, kernel))
        bias = self._random.normal(0, 0.1, channels)
        group = self.channels if depthwise else 1
        self.channels = channels
        return self.add(
            "Conv",
            [x, self.weight(values), self.weight(bias)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=group,
        )

    def activate(self, x: str, swish: bool) -> str:
        """ReLU, or hard-swish as one operator, as exporters write it: engines merge it with the layer before."""
        return self.add("HardSwish" if swish else "Relu", [x])

    def squeeze(self, x: str) -> str:
        """Squeeze-and-excite: weigh the channels by what the whole picture shows."""
        channels = self.channels
        gate = self.add("GlobalAveragePool", [x])
        gate = self.activate(self.conv(gate, max(8, channels // 8)), swish=False)
        gate = self.add("HardSigmoid", [self.conv(gate, channels)], alpha=1 / 6, beta=0.5)
        return self.add("Mul", [x, gate])

    def stage(self, x: str, stage: Stage, width: float) -> str:
        """One inverted residual block."""
        entry = self.channels
        y = self.activate(self.conv(x, _scaled(stage.expanded, width)), stage.swish)
        y = self.conv(y, self.channels, stage.kernel, stage.stride, depthwise=True)
        y = self.activate(y, stage.swish)
        if stage.squeeze:
            y = self.squeeze(y)
        y = self.conv(y, _scaled(stage.channels, width))
        return self.add("Add", [x, y]) if stage.stride == 1 and entry == self.channels else y

    def features(self, width: float) -> str:
        """The whole body, from `image` to one vector per picture."""
        x = self.activate(self.conv("image", _scaled(16, width), kernel=3, stride=2), swish=True)
        for stage in STAGES:
            x = self.stage(x, stage, width)
        x = self.activate(self.conv(x, 960), swish=True)
        x = self.add("GlobalAveragePool", [x])
        x = self.activate(self.conv(x, 1280), swish=True)
        return self.add("Flatten", [x])

    def classify(self, x: str, seen: Array) -> str:
        """Softmax over the classes, centred and scaled on the features `seen`.

        An untrained body maps all pictures to nearly the same vector; without this all would get one class.
        """
        spread = np.maximum(seen.std(axis=0), 1e-6)
        weights = self._random.normal(0, 3 / np.sqrt(self.channels), (CLASSES, self.channels)) / spread
        bias = -weights @ seen.mean(axis=0)
        return self.add("Softmax", [self.add("Gemm", [x, self.weight(weights), self.weight(bias)], transB=1)], axis=1)

    def model(self, output: str, size: int) -> onnx.ModelProto:
        """The finished file with one input `image` and one output."""
        return self.finished(
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", size])],
        )


def _scaled(channels: int, width: float) -> int:
    return max(8, round(channels * width / 8) * 8)


def build_model(path: Path, width: float, seed: int, inputs: Array) -> None:
    """Write one network, its classifier fitted to how `inputs` spread."""
    network = Network(seed)
    features = network.features(width)
    onnx.save(network.model(features, network.channels), path)
    seen: Array = open_sessions([path])[0].run(None, {"image": inputs})[0]
    onnx.save(network.model(network.classify(features, seen), CLASSES), path)


def draw_picture(random: np.random.Generator) -> str:
    """A base64 PNG of a gradient, some shapes and sensor-like noise; about 12.5 KB, as a small photo has."""
    width, height = (int(side) for side in random.integers(96, 105, 2))
    ends = random.integers(0, 256, (2, 3))
    ramp = np.linspace(0, 1, width)[None, :, None] * np.ones((height, 1, 1))
    image = Image.fromarray((ends[0] * (1 - ramp) + ends[1] * ramp).astype(np.uint8))
    canvas = ImageDraw.Draw(image)
    for _ in range(6):
        left, top, right, bottom = (int(edge) for edge in random.integers(0, 100, 4))
        box = (min(left, right), min(top, bottom), max(left, right), max(top, bottom))
        shape = canvas.ellipse if random.random() < 0.5 else canvas.rectangle
        shape(box, fill=tuple(int(value) for value in random.integers(0, 256, 3)))
    noise: NDArray[np.float64] = random.normal(0, NOISE, (height, width, 3))
    pixels = np.clip(np.asarray(image) + noise.round(), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def is_clear(scores: NDArray[Any]) -> bool:
    """Whether the best class is the best at any batch size."""
    second, first = np.sort(scores)[-2:]
    return bool(first - second > CLEAR_MARGIN)


def choose_samples(paths: Sequence[Path], images: Sequence[str]) -> list[Sample]:
    """The first pictures with one clearly best class, however many networks are asked, as found at batch 1."""
    sessions = open_sessions(paths)
    samples: list[Sample] = []
    for image in images:
        picture = decode(image)[None]
        scores = [mean_scores(sessions[: asked + 1], picture)[0] for asked in range(len(sessions))]
        if all(is_clear(row) for row in scores):
            samples.append(Sample(image, [int(row.argmax()) for row in scores]))
    if len(samples) < SAMPLES:
        raise RuntimeError(f"only {len(samples)} of {SAMPLES} pictures have a clear answer")
    return samples[:SAMPLES]


def build(folder: Path) -> bool:
    """Fill the folder unless it is complete already; says whether there was work to do."""
    stamp = folder / f"complete-{VERSION}"
    if stamp.exists() and all((folder / name).exists() for name in (*MODEL_FILES, SAMPLES_FILE)):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    images = [draw_picture(random) for _ in range(SAMPLES * 3 // 2)]
    inputs = np.stack([decode(image) for image in images])
    paths = [folder / name for name in MODEL_FILES]
    for seed, (path, width) in enumerate(zip(paths, WIDTHS, strict=True)):
        build_model(path, width, seed, inputs)
    samples = choose_samples(paths, images)
    (folder / SAMPLES_FILE).write_text(json.dumps([asdict(sample) for sample in samples]))
    # Written last: a build that was interrupted is done again.
    stamp.touch()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder(), help="default: %(default)s")
    folder: Path = parser.parse_args().folder
    started = time.perf_counter()
    built = build(folder)
    size = sum(os.path.getsize(folder / name) for name in MODEL_FILES) / 2**20
    what = f"built in {time.perf_counter() - started:.1f} s" if built else "already there"
    print(f"{folder}: {len(MODEL_FILES)} models, {size:.0f} MiB, {SAMPLES} pictures, {what}")


if __name__ == "__main__":
    main()

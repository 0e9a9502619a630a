"""Builds the text model: a transformer of four layers with random weights, and texts of mixed lengths."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.graph import Graph
from benchmarks.tools.texts import (
    ALPHABET,
    LONGEST,
    SHORTEST,
    TEXT_MODEL_FILE,
    TEXTS_FILE,
    TextSample,
    encode,
    pad,
    read,
)
from benchmarks.tools.workload import default_folder, open_sessions

LAYERS, WIDTH, HEADS = 4, 256, 4
TEXTS = 256
# Two best letters closer than this (scores have a spread of 3) could swap places when the batch is padded otherwise.
CLEAR_MARGIN = 1e-3
# Raised when the files' content changes, so that an old cache is built again.
VERSION = "text-1"


class Transformer(Graph):
    """An encoder that normalises before each part; `ids` and `mask` in, one letter's number per place out."""

    def linear(self, x: str, inputs: int, outputs: int, scale: float = 1.0) -> str:
        """A fully connected layer."""
        values = self._random.normal(0, scale / np.sqrt(inputs), (inputs, outputs))
        bias = self._random.normal(0, 0.02, outputs)
        return self.add("Add", [self.add("MatMul", [x, self.weight(values)]), self.weight(bias)])

    def norm(self, x: str) -> str:
        """Layer normalisation."""
        return self.add("LayerNormalization", [x, self.weight(np.ones(WIDTH)), self.weight(np.zeros(WIDTH))], axis=-1)

    def heads(self, x: str, order: Sequence[int]) -> str:
        """Split the width into heads and put the axes in this order."""
        split = self.add("Reshape", [x, self.integers(0, 0, HEADS, WIDTH // HEADS)])
        return self.add("Transpose", [split], perm=list(order))

    def attend(self, x: str, forbidden: str) -> str:
        """Self-attention; padding gets no attention."""
        query, key, value = (self.linear(x, WIDTH, WIDTH) for _ in range(3))
        scores = self.add("MatMul", [self.heads(query, (0, 2, 1, 3)), self.heads(key, (0, 2, 3, 1))])
        scores = self.add("Mul", [scores, self.weight(np.array(1 / np.sqrt(WIDTH // HEADS)))])
        share = self.add("Softmax", [self.add("Add", [scores, forbidden])], axis=-1)
        mixed = self.add("MatMul", [share, self.heads(value, (0, 2, 1, 3))])
        joined = self.add("Reshape", [self.add("Transpose", [mixed], perm=[0, 2, 1, 3]), self.integers(0, 0, WIDTH)])
        return self.linear(joined, WIDTH, WIDTH)

    def layer(self, x: str, forbidden: str) -> str:
        """Attention, then two fully connected layers; both on top of what came in."""
        x = self.add("Add", [x, self.attend(self.norm(x), forbidden)])
        wide = self.add("Relu", [self.linear(self.norm(x), WIDTH, 4 * WIDTH, scale=np.sqrt(2))])
        return self.add("Add", [x, self.linear(wide, 4 * WIDTH, WIDTH)])

    def scores(self) -> str:
        """The whole network, from `ids` and `mask` to a score for each letter at each place."""
        letters = self.weight(self._random.normal(0, 1, (len(ALPHABET), WIDTH)))
        places = self.weight(self._random.normal(0, 0.5, (LONGEST, WIDTH)))
        length = self.add("Slice", [self.add("Shape", ["ids"]), self.integers(1), self.integers(2)])
        places = self.add("Slice", [places, self.integers(0), length, self.integers(0)])
        x = self.add("Add", [self.add("Gather", [letters, "ids"]), places])
        padding = self.add("Sub", [self.weight(np.array(1)), "mask"])
        forbidden = self.add("Mul", [padding, self.weight(np.array(-1e9))])
        forbidden = self.add("Unsqueeze", [forbidden, self.integers(1, 2)])
        for _ in range(LAYERS):
            x = self.layer(x, forbidden)
        return self.linear(self.norm(x), WIDTH, len(ALPHABET), scale=3)

    def model(self, output: str, kind: int, *rest: int) -> onnx.ModelProto:
        """The finished file."""
        inputs = [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", "length"]),
        ]
        return self.finished(inputs, [helper.make_tensor_value_info(output, kind, ["batch", "length", *rest])])


def write_text(random: np.random.Generator) -> str:
    """Random letters; every length is as likely as any other."""
    length = int(random.integers(SHORTEST, LONGEST + 1))
    return "".join(ALPHABET[number] for number in random.integers(0, len(ALPHABET), length))


def choose_texts(scores_file: Path, random: np.random.Generator) -> list[TextSample]:
    """Texts of which every letter has one clearly best answer, and these answers, as found at batch 1."""
    session = open_sessions([scores_file])[0]
    samples: list[TextSample] = []
    while len(samples) < TEXTS:
        text = write_text(random)
        scores = session.run(None, pad([encode(text)]))[0][0]
        second, first = np.sort(scores, axis=-1)[:, -2:].T
        if (first - second > CLEAR_MARGIN).all():
            samples.append(TextSample(text, read(scores.argmax(axis=-1), len(text))))
    return samples


def build(folder: Path) -> bool:
    """Fill the folder unless it is complete already; says whether there was work to do."""
    stamp = folder / f"complete-{VERSION}"
    if stamp.exists() and all((folder / name).exists() for name in (TEXT_MODEL_FILE, TEXTS_FILE)):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TEXT_MODEL_FILE
    network = Transformer(seed=11)
    scores = network.scores()
    onnx.save(network.model(scores, TensorProto.FLOAT, len(ALPHABET)), path)
    samples = choose_texts(path, np.random.default_rng(13))
    best = network.add("ArgMax", [scores], axis=-1, keepdims=0)
    onnx.save(network.model(best, TensorProto.INT64), path)
    (folder / TEXTS_FILE).write_text(json.dumps([asdict(sample) for sample in samples]))
    # Written last: a build that was interrupted is done again.
    stamp.touch()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder(), help="default: %(default)s")
    folder: Path = parser.parse_args().folder
    started = time.perf_counter()
    built = build(folder)
    what = f"built in {time.perf_counter() - started:.1f} s" if built else "already there"
    size = (folder / TEXT_MODEL_FILE).stat().st_size / 2**20
    print(f"{folder}: a transformer, {size:.0f} MiB, {TEXTS} texts, {what}")


if __name__ == "__main__":
    main()

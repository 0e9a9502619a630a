"""Records what the example applications answer to held-out inputs: confidence, label and size, nothing of the inputs.

    python benchmarks/policy/drift_answers.py --data DATA    DATA holds ants_bees, asr_zh, handwriting_zh_tw and tweets

It writes `drift_answers.npz`, which `drift.py` needs. Labels are numbers there.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from timebound.observe.told import told_by  # noqa: E402 - the repository's own, wherever it lies
from timebound.testing import batch  # noqa: E402

OUT = Path(__file__).with_name("drift_answers.npz")
_AT_ONCE = 16
_AIRLINE = 3_000


def sentiment(data: Path) -> Iterator[tuple[str, Any, float]]:
    """SemEval-2017's test set, and tweets to airlines; by the length of the text."""
    sys.path.insert(0, str(ROOT / "examples" / "sentiment"))
    posts = import_module("posts")
    every = posts.airline(data / "tweets")
    tests = (("sentiment", posts.semeval(data / "tweets", "test")), ("airline", every[:: len(every) // _AIRLINE]))
    for name, asked in tests:
        for post in asked:
            yield name, {"text": post.text[:1000]}, float(len(post.text[:1000]))


def handwriting(data: Path) -> Iterator[tuple[str, Any, float]]:
    """Typefaces and a pen that training never saw; and two people's scans, which are none of these."""
    from examples.handwriting.evaluate import FACES, _drawn

    folder = data / "handwriting_zh_tw"
    file = np.load(folder / "glyphs48.npz")
    for face in FACES:
        packed = file["packed"][file["source"] == list(file["sources"]).index(face)]
        for picture in np.stack([packed >> 4, packed & 15], -1).reshape(len(packed), 48, 48) * np.uint8(17):
            yield "handwriting", *_picture(picture)
    strokes = dict(np.load(folder / "strokes_pen_tomoe.npz"))
    for place in range(0, len(strokes["chars"]), 2):
        yield "handwriting", *_picture(_drawn(strokes, place))
    for picture in np.load(folder / "real_two_writers.npz")["images"]:
        yield "writers", *_picture(picture)


def insects(data: Path) -> Iterator[tuple[str, Any, float]]:
    """The 153 photos kept back."""
    with zipfile.ZipFile(data / "ants_bees" / "ants_bees_256.zip") as photos:
        for name in sorted(photos.namelist()):
            if "/val/" in f"/{name}" and name.endswith(".jpg"):
                body = photos.read(name)
                yield "insects", body, float(len(body))


def correction(data: Path) -> Iterator[tuple[str, Any, float]]:
    """The test lines; the answer is a sentence, so there is neither label nor confidence. Only the size is needed."""
    sys.path.insert(0, str(ROOT / "examples" / "correction"))
    for line in import_module("corpus").read_lines(data / "asr_zh"):
        if line.part == "test":
            yield "correction", None, len(line.recognised) + 1.0


APPS = {"sentiment": sentiment, "handwriting": handwriting, "insects": insects, "correction": correction}


def _picture(pixels: Any) -> tuple[Any, float]:
    file = io.BytesIO()
    Image.fromarray(255 - pixels).save(file, "PNG")
    body = {"esun_uuid": "x", "image": b64encode(file.getvalue()).decode()}
    return body, float(len(msgspec.json.encode(body)))


def record(app: str, data: Path) -> dict[str, list[tuple[float, str, float]]]:
    """What the application answers to each of its inputs."""
    found: dict[str, list[tuple[float, str, float]]] = {}
    asked = list(APPS[app](data))
    for start in range(0, len(asked), _AT_ONCE):
        part = asked[start : start + _AT_ONCE]
        bodies = [body for _, body, _ in part]
        answers = [None] * len(part) if app == "correction" else batch(str(ROOT / "examples" / app), bodies)
        for (name, _, size), answer in zip(part, answers, strict=True):
            if not isinstance(answer, Exception):  # a text of which nothing can be read
                told = told_by(
                    msgspec.json.encode(answer), "application/json", "feeling" if app == "sentiment" else None
                )
                sure = -1.0 if told.confidence is None else told.confidence
                found.setdefault(name, []).append((sure, told.label, size))
    return found


def packed(rows: list[tuple[float, str, float]], name: str) -> dict[str, Any]:
    """Columns in as few bytes as they need: shares in ten-thousandths, labels as numbers."""
    sure, labels, sizes = zip(*rows, strict=True)
    columns: dict[str, Any] = {f"{name}_size": np.array(sizes, np.uint32 if max(sizes) > 65_535 else np.uint16)}
    if max(sure) >= 0:
        known = {label: number for number, label in enumerate(sorted(set(labels)))}
        columns[f"{name}_confidence"] = (np.array(sure) * 10_000).round().astype(np.uint16)
        columns[f"{name}_label"] = np.array([known[label] for label in labels], np.uint16)
    return columns


def main() -> int:
    """Ask each application in a process of its own: their modules have the same names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of all data")
    parser.add_argument("--only", choices=list(APPS), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only:
        sys.stdout.buffer.write(msgspec.json.encode(record(chosen.only, chosen.data)))
        return 0
    columns: dict[str, Any] = {}
    for app in APPS:
        command = [sys.executable, __file__, "--data", str(chosen.data), "--only", app]
        told = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        for name, rows in msgspec.json.decode(told).items():
            print(f"{name}: {len(rows):,} answers")
            columns |= packed([tuple(row) for row in rows], name)
    np.savez_compressed(OUT, **columns)
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

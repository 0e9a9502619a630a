"""The shipped digits model: its files, its accuracy, and its answers to drawings and to bad input."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import timebound as tb
from timebound.backends.base import Place, opened_in
from timebound.demo import app
from timebound.demo.app import SAMPLES, Digits

FOLDER = Path(app.__file__).parent
FILES = sorted((FOLDER / "models").glob("*.onnx"))


@pytest.fixture(scope="module")
def digits() -> Digits:
    model = Digits()
    with opened_in(Place(FOLDER)):
        model.load()
    return model


def held_out() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The images that scripts/train_demo.py keeps away from training: same seed, same split."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.25, random_state=8, stratify=labels)
    return (parts[1].reshape(-1, 1, 8, 8) / 16).astype(np.float32), parts[3]


def answer(model: Digits, **fields: Any) -> dict[str, Any]:
    request = Digits.Request(**fields)
    return model.finish(model.infer(np.stack([model.prepare(request)]))[0], request)


def png(tone: npt.NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(tone).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_member_takes_pixels_and_gives_probabilities(file: Path) -> None:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (taken,), (given,) = session.get_inputs(), session.get_outputs()

    assert (taken.name, taken.type, taken.shape) == ("pixels", "tensor(float)", ["batch", 1, 8, 8])
    assert (given.name, given.type, given.shape) == ("probabilities", "tensor(float)", ["batch", 10])
    for size in (1, 7):
        (rows,) = session.run(None, {"pixels": np.full((size, 1, 8, 8), 0.3, np.float32)})
        assert rows.shape == (size, 10)
        assert rows.sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_three_members_weigh_less_than_300_kilobytes() -> None:
    assert len(FILES) == 3
    assert sum(file.stat().st_size for file in FILES) < 300_000


def test_every_number_of_members_reads_held_out_digits(digits: Digits) -> None:
    images, labels = held_out()
    outputs = [member(images) for member in digits.net.members]

    accuracy = [float(np.mean(np.mean(outputs[:k], axis=0).argmax(axis=1) == labels)) for k in (1, 2, 3)]

    assert min(accuracy) >= 0.98, accuracy
    assert accuracy[2] >= 0.99, accuracy
    assert float(np.mean(digits.infer(images).argmax(axis=1) == labels)) == accuracy[2]


def test_members_differ_where_they_err(digits: Digits) -> None:
    images, labels = held_out()
    wrong = [set(np.flatnonzero(member(images).argmax(axis=1) != labels)) for member in digits.net.members]

    assert len({frozenset(each) for each in wrong}) == 3
    assert len(set.intersection(*wrong)) < min(len(each) for each in wrong)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: str(sample["label"]))
def test_samples_are_read_right(digits: Digits, sample: dict[str, Any]) -> None:
    got = answer(digits, image=sample["image"])

    assert got["digit"] == sample["label"]
    assert got["confidence"] == got["probabilities"][got["digit"]]
    assert sum(got["probabilities"]) == pytest.approx(1, abs=1e-3)


def test_example_is_answered(digits: Digits) -> None:
    assert answer(digits, **Digits.example)["digit"] == 3


def test_samples_are_one_per_digit_on_64_by_64_white_paper() -> None:
    assert [sample["label"] for sample in SAMPLES] == list(range(10))
    for sample in SAMPLES:
        tone = tb.image.decode(sample["image"], mode="L")
        assert tone.shape == (64, 64)
        assert (tone[0] == 255).all()
        assert tone.min() < 64


@pytest.mark.parametrize("label", range(10))
def test_size_place_and_polarity_do_not_matter(digits: Digits, label: int) -> None:
    tone = tb.image.decode(SAMPLES[label]["image"], mode="L")
    large = np.kron(tone, np.ones((5, 5), np.uint8))
    moved = np.pad(large, ((0, 90), (140, 10)), constant_values=255)

    assert answer(digits, image=png(moved))["digit"] == label
    assert answer(digits, image=png(255 - moved))["digit"] == label


def test_thin_line_is_read_as_one(digits: Digits) -> None:
    page = np.full((280, 280), 255, np.uint8)
    page[60:220, 138:142] = 0

    assert answer(digits, image=png(page))["digit"] == 1


def test_pixels_are_taken_as_they_are(digits: Digits) -> None:
    images, _ = held_out()
    rows = (images[0, 0] * 16).tolist()

    assert np.array_equal(digits.prepare(Digits.Request(pixels=rows)), images[0])


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({}, "image", "send image"),
        ({"image": SAMPLES[0]["image"], "pixels": [[0.0] * 8] * 8}, "pixels", "only one"),
        ({"pixels": [[0.0] * 8] * 7}, "pixels", "8 rows of 8"),
        ({"pixels": [[0.0] * 8] * 7 + [[0.0] * 9]}, "pixels", "8 rows of 8"),
        ({"pixels": [[17.0] * 8] * 8}, "pixels", "between 0"),
        ({"pixels": [[float("nan")] * 8] * 8}, "pixels", "between 0"),
        ({"image": png(np.full((30, 30), 200, np.uint8))}, "image", "empty"),
        ({"image": "not a picture"}, "image", "base64"),
    ],
    ids=["neither", "both", "too few rows", "a long row", "out of range", "nan", "blank page", "not base64"],
)
def test_bad_input_names_the_field_and_the_cure(digits: Digits, fields: Any, field: str, text: str) -> None:
    with pytest.raises(tb.BadInput, match=text) as caught:
        digits.prepare(Digits.Request(**fields))
    assert caught.value.field == field


@pytest.mark.parametrize("shape", [(1, 300), (300, 1), (3, 2), (2, 2000), (4000, 30)])
def test_odd_pictures_are_prepared_like_any_other(digits: Digits, shape: tuple[int, int]) -> None:
    tone = np.full(shape, 255, np.uint8)
    tone[: -(-shape[0] // 2), : -(-shape[1] // 2)] = 0

    ink = digits.prepare(Digits.Request(image=png(tone)))

    assert ink.shape == (1, 8, 8)
    assert ink.dtype == np.float32
    assert 0 <= ink.min() < ink.max() <= 1


def test_fallback_has_the_shape_of_an_answer(digits: Digits) -> None:
    request = Digits.Request(image=SAMPLES[5]["image"])
    spare = digits.fallback(request)

    assert spare["digit"] is None
    assert spare.keys() == answer(digits, image=SAMPLES[5]["image"]).keys()
    assert len(spare["probabilities"]) == 10

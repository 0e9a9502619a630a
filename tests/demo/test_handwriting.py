"""The shipped handwriting model: its files, its answers to samples, to drawings and to odd or bad pictures."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from PIL import Image, ImageDraw

import timebound as tb
from timebound.demo import app
from timebound.demo.app import FILES, LABELS, SAMPLES, Handwriting
from timebound.demo.picture import read_picture

FOLDER = Path(app.__file__).parent
IMAGES = {sample["title"]: sample["image"] for sample in SAMPLES}


@pytest.fixture(scope="module")
def model() -> Handwriting:
    model = Handwriting()
    model.load()
    return model


def png(tone: npt.NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(tone).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def answer(model: Handwriting, image: str) -> dict[str, Any]:
    request = Handwriting.Request(esun_uuid="one", image=image)
    return model.finish(model.infer(np.stack([model.prepare(request)]))[0], request)


@pytest.mark.parametrize("file", FILES)
def test_each_member_takes_ink_and_gives_probabilities(file: str) -> None:
    session = onnxruntime.InferenceSession(FOLDER / file, providers=["CPUExecutionProvider"])
    (taken,), (given,) = session.get_inputs(), session.get_outputs()

    assert (taken.name, taken.type, taken.shape) == ("pixels", "tensor(float)", ["batch", 1, 64, 64])
    assert (given.name, given.type) == ("probabilities", "tensor(float)")
    for size in (1, 3):
        (rows,) = session.run(None, {"pixels": np.full((size, 1, 64, 64), 0.3, np.float32)})
        assert rows.shape == (size, len(LABELS))
        assert rows.sum(axis=1) == pytest.approx(1, abs=1e-4)


def test_three_members_weigh_less_than_15_megabytes() -> None:
    assert len(FILES) == 3
    assert sum((FOLDER / file).stat().st_size for file in FILES) < 15_000_000


def test_there_are_800_characters_and_isnull() -> None:
    assert len(LABELS) == len(set(LABELS)) == 801
    assert LABELS[-1] == "isnull"
    assert "勇" in LABELS


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["title"])
def test_samples_are_read_right(model: Handwriting, sample: dict[str, str]) -> None:
    got = answer(model, sample["image"])

    assert got["answer"] == (sample["title"] if sample["title"] in LABELS else "isnull")
    assert 0.5 < got["confidence"] <= 1


def test_an_answer_carries_what_the_form_asks_for(model: Handwriting) -> None:
    first, second = (answer(model, SAMPLES[0]["image"]) for _ in range(2))

    asked_for = ["esun_uuid", "server_uuid", "server_timestamp", "answer", "confidence"]
    assert list(first) == [*asked_for, "character", "character_confidence"]
    assert first["esun_uuid"] == "one"
    assert first["server_uuid"] != second["server_uuid"]
    assert isinstance(first["server_timestamp"], int)


def said(model: Handwriting, title: str, isnull: float, character: float) -> dict[str, Any]:
    """What is said to a sample if the networks give such shares to `isnull` and to the fourth character."""
    output = np.zeros(801, np.float32)
    output[3], output[-1] = character, isnull
    return model.finish(output, Handwriting.Request(esun_uuid="one", image=IMAGES[title]))


def test_the_likeliest_character_stands_beside_whatever_is_answered(model: Handwriting) -> None:
    none, read = said(model, "勇", 0.7, 0.3), said(model, "勇", 0.3, 0.7)

    assert (none["answer"], none["character"]) == ("isnull", LABELS[3])
    assert (none["confidence"], none["character_confidence"]) == (0.7, 0.3)
    assert (read["answer"], read["character"]) == (LABELS[3], LABELS[3])
    assert read["confidence"] == read["character_confidence"] == 0.7


@pytest.mark.parametrize(("title", "none"), [("勇", app.CLEAN_NONE), ("林", app.FORM_NONE)])
def test_isnull_takes_more_on_a_form_than_on_a_clean_picture(model: Handwriting, title: str, none: float) -> None:
    assert app.CLEAN_NONE < app.FORM_NONE
    assert said(model, title, none - 0.01, 0.1)["answer"] == LABELS[3]
    assert said(model, title, none + 0.01, 0.1)["answer"] == "isnull"


def test_the_page_is_told_what_can_be_answered() -> None:
    picture = msgspec.json.schema(Handwriting.Request)["$defs"]["Request"]["properties"]["image"]

    assert [*picture["x-answers"]] == LABELS[:-1]
    assert picture["x-named"] == {"isnull": "none of the 800"}
    assert picture["x-fallback"] == "no time to read it"
    assert picture["contentMediaType"].startswith("image/")


def test_size_place_and_polarity_do_not_matter(model: Handwriting) -> None:
    tone = tb.image.decode(SAMPLES[0]["image"], mode="L")
    large = np.kron(tone, np.ones((3, 3), np.uint8))
    moved = np.pad(large, ((0, 90), (140, 10)), constant_values=255)

    assert answer(model, png(moved))["answer"] == "勇"
    assert answer(model, png(255 - moved))["answer"] == "勇"
    assert answer(model, png(moved // 3 + 100))["answer"] == "勇"


@pytest.mark.parametrize("tone", [0, 200, 255])
def test_an_empty_page_is_isnull(model: Handwriting, tone: int) -> None:
    assert answer(model, png(np.full((90, 70), tone, np.uint8)))["answer"] == "isnull"


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (3, 2), (2, 2000), (4000, 30)])
def test_odd_pictures_are_prepared_like_any_other(shape: tuple[int, int]) -> None:
    tone = np.full(shape, 255, np.uint8)
    tone[: -(-shape[0] // 2), : -(-shape[1] // 2)] = 0

    ink = read_picture(tone)

    assert ink.shape == (64, 64)
    assert ink.dtype == np.float32
    assert 0 <= ink.min() <= ink.max() <= 1


def test_ink_is_cut_out_and_fills_the_frame() -> None:
    page = np.full((200, 300), 255, np.uint8)
    page[20:60, 250:280] = 0

    rows = np.flatnonzero(read_picture(page).max(axis=1) > 0.5)

    assert rows[0] == 64 - 1 - rows[-1]
    assert len(rows) == pytest.approx(64 * 0.86, abs=1)


def test_strokes_of_a_small_scan_stay_dark() -> None:
    """Seven of them, two pixels wide on a sheet of 64, are enlarged: a soft filter leaves them at 0.87 of the ink."""
    sheet = Image.new("L", (512, 512), 255)
    pen = ImageDraw.Draw(sheet)
    for x in np.linspace(128, 384, 7):
        pen.line([(x, 128), (x, 384)], fill=0, width=15)

    ink = read_picture(np.asarray(sheet.resize((64, 64), Image.Resampling.BOX)))

    assert np.sort(ink[32])[-14:].mean() > 0.92
    assert ink[32, 6:58].min() < 0.02


def test_a_broken_picture_is_refused(model: Handwriting) -> None:
    with pytest.raises(tb.BadInput) as caught:
        model.prepare(Handwriting.Request(esun_uuid="one", image="not a picture"))
    assert caught.value.field == "image"


def test_the_fallback_has_the_shape_of_an_answer(model: Handwriting) -> None:
    spare = model.fallback(Handwriting.Request(esun_uuid="one", image=""))

    assert spare.keys() == answer(model, SAMPLES[0]["image"]).keys()
    assert (spare["answer"], spare["confidence"]) == ("isnull", 0.0)

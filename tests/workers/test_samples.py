"""What a class offers to try: from a list, or from a folder beside its file."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import timebound as tb
from timebound.errors import SetupError
from timebound.model import request_schema
from timebound.types import Sample
from timebound.workers.samples import MOST, picture_field, read_samples


class Drawing(tb.Struct):
    id: str
    image: tb.Image64 | None = None


class Typed(tb.Model):
    Request = Drawing
    example = {"id": "e", "image": "QQ=="}  # noqa: RUF012 - read once, never changed


class Raw(tb.Model):
    pass


def samples_of(base: type[tb.Model], samples: Any, home: Path | None = None) -> list[Sample]:
    """The samples of a class like `base` that lives in a file in `home`."""
    module = ModuleType("sampled_app")
    module.__file__ = str((home or Path()) / "app.py")
    sys.modules["sampled_app"] = module
    try:
        cls: type[tb.Model] = type("Sampled", (base,), {"samples": samples, "__module__": "sampled_app"})
        return read_samples(cls, request_schema(cls.Request))
    finally:
        del sys.modules["sampled_app"]


def test_a_typed_models_samples_are_json_bodies() -> None:
    assert samples_of(Typed, [{"title": "one", "body": {"id": "1"}}]) == [Sample("one", {"id": "1"})]
    assert samples_of(Typed, [{"title": "two", "body": Drawing("2")}]) == [Sample("two", {"id": "2", "image": None})]


def test_a_raw_models_samples_are_texts_or_bytes() -> None:
    samples = [{"title": "text", "body": "hi"}, {"title": "bytes", "body": b"\x00"}]
    assert samples_of(Raw, samples) == [
        Sample("text", data="aGk=", media="text/plain"),
        Sample("bytes", data="AA==", media=None),
    ]


def test_a_folder_of_pictures_and_bodies_is_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "tries").mkdir()
    (tmp_path / "tries" / "b cat.png").write_bytes(b"png")
    (tmp_path / "tries" / "a.json").write_text('{"id": "a"}')
    (tmp_path / "tries" / ".hidden").write_text("")
    assert samples_of(Typed, "tries", tmp_path) == [
        Sample("a", {"id": "a"}),
        Sample("b cat", {"id": "e", "image": base64.b64encode(b"png").decode()}),
    ]
    assert [(sample.title, sample.media) for sample in samples_of(Raw, "tries", tmp_path)] == [
        ("a", "application/json"),
        ("b cat", "image/png"),
    ]


@pytest.mark.parametrize(
    ("base", "samples", "sentence"),
    [
        (Typed, "nowhere", "samples folder not found"),
        (Typed, [{"body": {}}], 'give {"title"'),
        (Typed, ["text"], 'give {"title"'),
        (Typed, [{"title": "t", "body": object()}], "is not JSON"),
        (Raw, [{"title": "t", "body": 7}], "give bytes or a text"),
        (Raw, [{"title": "t", "body": ""}] * (MOST + 1), "at most 100"),
        (Raw, [{"title": "t", "body": b"x" * 4_000_000}], "give smaller ones"),
    ],
)
def test_what_cannot_be_a_sample_is_said_at_start(base: type[tb.Model], samples: Any, sentence: str) -> None:
    with pytest.raises(SetupError, match=sentence):
        samples_of(base, samples)


@pytest.mark.parametrize(("name", "sentence"), [("a.json", "not valid JSON"), ("a.zip", "neither a .json file nor")])
def test_a_file_that_cannot_be_a_sample_is_named(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "tries").mkdir()
    (tmp_path / "tries" / name).write_text("{")
    with pytest.raises(SetupError, match=f"{name}.*{sentence}"):
        samples_of(Typed, "tries", tmp_path)


def test_a_picture_needs_a_field_that_is_one(tmp_path: Path) -> None:
    class Text(tb.Struct):
        image: str

    (tmp_path / "tries").mkdir()
    (tmp_path / "tries" / "a.png").write_bytes(b"png")
    with pytest.raises(SetupError, match=r"tb\.Image64"):
        samples_of(type("Texts", (tb.Model,), {"Request": Text}), "tries", tmp_path)


def test_the_picture_field_is_the_one_declared() -> None:
    class Two(tb.Struct):
        name: str
        photo: tb.Image64

    assert picture_field(request_schema(Two) or {}) == "photo"
    assert picture_field(request_schema(Drawing) or {}) == "image"

"""What is registered changes by one archive at a time, from the model store and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.handlers.test_manifest import GOOD, planted

from timebound.errors import RequestError, SetupError
from timebound.handlers.manifest import Registered
from timebound.handlers.properties import Archive
from timebound.handlers.registry import Registry, first_list


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A model store with two versions of one model and another model, unpacked."""
    folder = tmp_path / "store"
    for name, model, version in (("one", "m", "1.0"), ("two", "m", "2.0"), ("other", "o", "1.0")):
        (folder / name).mkdir(parents=True)
        planted(folder / name, {**GOOD, "modelName": model, "modelVersion": version})
    return folder


def names(registry: Registry) -> list[tuple[str | None, str | None]]:
    return [(each.name, each.version) for each in registry.listed.models]


def registry(tmp_path: Path, store: Path, *wanted: str) -> Registry:
    return Registry(first_list(tmp_path, store, wanted, {}))


def test_a_server_starts_with_what_is_asked_for(tmp_path: Path, store: Path) -> None:
    assert names(registry(tmp_path, store)) == []
    assert names(registry(tmp_path, store, "mine=one", "other")) == [("mine", "1.0"), ("o", "1.0")]
    assert names(registry(tmp_path, store, "all")) == [("m", "1.0"), ("o", "1.0"), ("m", "2.0")]


def test_properties_name_models_their_default_and_their_batch(tmp_path: Path, store: Path) -> None:
    known = {
        "m": {
            "1.0": Archive(mar_name="one", batch_size=4, response_timeout=9),
            "2.0": Archive(mar_name="two", default_version=True),
        }
    }
    found = Registry(first_list(tmp_path, store, (), known, 30.0)).listed.models
    assert [(each.version, each.batch_size, each.response_timeout) for each in found] == [
        ("2.0", None, None),
        ("1.0", 4, 9),
    ]
    assert {each.usual_timeout for each in found} == {30.0}


def test_models_come_go_and_change_their_default(tmp_path: Path, store: Path) -> None:
    book = registry(tmp_path, store, "one")
    book.put(book.with_model(Registered(file="two"))[0])
    book.put(book.with_model(Registered(file="two", name="alias"))[0])
    assert names(book) == [("m", "1.0"), ("m", "2.0"), ("alias", "2.0")]
    book.put(book.with_default("m", "2.0"))
    assert [each.version for each in book.named("m")] == ["2.0", "1.0"]
    book.put(book.without("m", None))
    book.put(book.without("alias", "2.0"))
    assert names(book) == [("m", "1.0")]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("../outside", "Relative path"),
        ("/etc", "Relative path"),
        ("a/../../outside", "Relative path"),
        ("link", "Relative path"),
        ("", "Relative path"),
        ("gone.mar", "Model not found at"),
        ("a\0b.mar", "is no name of a file"),
        ("ü" * 128, "is no name of a file"),
        ("a/" * 501, "is no name of a file"),
        ("http://host/m.mar", "is not fetched"),
        ("file:///etc/m.mar", "is not fetched"),
        ("one", "already registered"),
    ],
)
def test_what_cannot_be_registered_is_told(tmp_path: Path, store: Path, url: str, said: str) -> None:
    (store / "link").symlink_to("/etc")
    with pytest.raises(RequestError, match=said):
        registry(tmp_path, store, "one").with_model(Registered(file=url))


@pytest.mark.parametrize("url", ["a\0b", "\udcff", "a" * 252, "a" * 256])
def test_a_server_does_not_start_with_what_can_be_no_file(tmp_path: Path, store: Path, url: str) -> None:
    with pytest.raises(SetupError, match="is no name of a file"):
        registry(tmp_path, store, url)


def test_a_model_that_is_not_registered_is_told(tmp_path: Path, store: Path) -> None:
    book = registry(tmp_path, store, "one")
    with pytest.raises(RequestError, match="Model not found: x"):
        book.without("x", None)
    with pytest.raises(RequestError, match=r"version: 9 does not exist"):
        book.with_default("m", "9")


def test_all_is_no_version_to_be_the_default_or_to_go(tmp_path: Path, store: Path) -> None:
    book = registry(tmp_path, store, "one", "two")
    for change in (book.with_default, book.without):
        with pytest.raises(RequestError, match="version: all does not exist"):
            change("m", "all")


def test_a_start_with_an_archive_that_is_not_there_ends_in_a_sentence(tmp_path: Path, store: Path) -> None:
    with pytest.raises(SetupError, match="does not exist"):
        registry(tmp_path, store, "gone.mar")
    with pytest.raises(SetupError, match="model store"):
        first_list(tmp_path, tmp_path / "nowhere", (), {})
    with pytest.raises(SetupError, match="Relative path"):
        registry(tmp_path, store, "m=../outside")

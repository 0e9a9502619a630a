"""A handler is found in its archive, or among the stock ones of TorchServe where that is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.models import archives

from timebound.errors import SetupError
from timebound.handlers.entry import Room, open_handler
from timebound.handlers.manifest import Registered, describe
from timebound.handlers.model import handler_model
from timebound.handlers.rows import Row
from timebound.handlers.unpacked import unpacked

# As in the package: an abstract class in a module of its own, which the stock handlers import and derive from.
STOCK = {
    "ts/__init__.py": "",
    "ts/torch_handler/__init__.py": "",
    "ts/torch_handler/base_handler.py": """
import abc

class BaseHandler(abc.ABC):
    def initialize(self, context):
        self.model = context.manifest["model"]["modelName"]

    def handle(self, data, context):
        return [self.postprocess(row) for row in data]

    @abc.abstractmethod
    def postprocess(self, row): ...
""",
    "ts/torch_handler/image_classifier.py": """
from ts.torch_handler.base_handler import BaseHandler

class ImageClassifier(BaseHandler):
    def postprocess(self, row):
        return f"{self.model} sees {bytes(row['body']).decode()}"
""",
    "ts/torch_handler/object_detector.py": "import torchvision_that_nobody_has\n",
}


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An archive's folder, entered, where a package `ts` is installed; all of it is forgotten afterwards."""
    for name, text in STOCK.items():
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    folder = tmp_path / "archive"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(Room, "_current", None)
    known = set(sys.modules)
    Room(folder).enter()
    yield folder
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_stock_name_finds_torchserves_own_handler_and_answers(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"any")
    file = archives.pack(
        tmp_path, "birds", "--version", "1.0", "--handler", "image_classifier", "--serialized-file", weights
    )
    model = handler_model(describe(unpacked(file), Registered(file=file.name)))
    model.load()
    assert model.infer([Row(b"a robin"), Row(b"a wren")]) == ["birds sees a robin", "birds sees a wren"]


def test_a_file_of_the_archive_goes_before_a_stock_handler_of_its_name(room: Path) -> None:
    (room / "image_classifier.py").write_text("def handle(data, context): return ['own']")
    entry, _ = open_handler("birds", "image_classifier", room)
    given: Any = None
    assert entry([{}], given) == ["own"]


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("bird_watcher", "the archive has no bird_watcher.py, and TorchServe no handler of that name"),
        ("object_detector", "torchvision_that_nobody_has is missing; install it with: pip install torchserve"),
        ("base_handler", "neither a function handle.* nor a class"),
        ("a-b", "it must be a file of the archive, or file:function"),
    ],
)
def test_a_stock_handler_that_cannot_be_had_is_told_with_its_cure(room: Path, handler: str, said: str) -> None:
    with pytest.raises(SetupError, match=said):
        open_handler("birds", handler, room)


def test_without_torchserve_a_stock_name_says_what_to_install(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith("/site")])
    with pytest.raises(SetupError, match="ts is missing; install it with: pip install torchserve"):
        open_handler("birds", "image_classifier", room)


def test_a_function_that_is_named_is_called_with_none_at_load(room: Path) -> None:
    (room / "own_file.py").write_text("seen = []\ndef answer(data, context):\n    seen.append(data)\n    return data")
    entry, initialize = open_handler("birds", "own_file:answer", room)
    given: Any = None
    initialize(given)
    assert entry([1], given) == [1]
    assert sys.modules["own_file"].seen == [None, [1]]
    with pytest.raises(SetupError, match="has no such function"):
        open_handler("birds", "own_file:gone", room)


def test_of_several_classes_that_could_answer_none_is_guessed(room: Path) -> None:
    (room / "two.py").write_text("class A:\n    def handle(self, d, c): ...\nclass B:\n    def handle(self, d, c): ...")
    with pytest.raises(SetupError, match=r"several classes \(A, B\)"):
        open_handler("birds", "two", room)

"""New applications: complete, named as asked, and never written over something."""

from __future__ import annotations

import builtins
import keyword
from pathlib import Path

import pytest

from timebound.errors import SetupError
from timebound.model import name_of
from timebound.scaffold.scaffold import TEMPLATES, write_application
from timebound.target import load_models

FILES = {".gitignore", "README.md", "app.py", "test_my_first_app.py", "timebound.toml"}
MORE = {
    "plain": set(),
    "image": {"samples/leaf.png"},
    "onnx": {"model.onnx"},
    "sklearn": {"model.onnx", "train.py"},
    "text": {"model.onnx", "train.py"},
    "function": set(),
}
CLASSES = [name for name in TEMPLATES if name != "function"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_an_application_is_complete_and_bears_its_name(tmp_path: Path, template: str) -> None:
    folder = tmp_path / "my-first_app"
    written = {str(file.relative_to(folder)) for file in write_application(folder, template)}
    assert written == FILES | MORE[template]
    (model,) = load_models(folder, threads=1)
    wanted = ("my-first_app", "MyFirstApp") if template in CLASSES else ("my_first_app", "my_first_app")
    assert (name_of(type(model)), type(model).__name__) == wanted
    texts = [(folder / name).read_text() for name in FILES]
    assert not [text for text in texts if "emplate" in text]


@pytest.mark.parametrize("template", CLASSES)
@pytest.mark.parametrize("name", [*sorted({word.lower() for word in keyword.kwlist}), "value-error", "app"])
def test_a_name_that_python_has_already_makes_a_class_of_its_own(tmp_path: Path, template: str, name: str) -> None:
    write_application(tmp_path / name, template)
    (model,) = load_models(tmp_path / name, threads=1)
    assert name_of(type(model)) == name
    assert not hasattr(builtins, type(model).__name__)


@pytest.mark.parametrize(("name", "made"), [("class", "class_model"), ("print", "print_model"), ("a-b", "a_b")])
def test_a_function_has_a_name_that_python_does_not_have(tmp_path: Path, name: str, made: str) -> None:
    write_application(tmp_path / name, "function")
    (model,) = load_models(tmp_path / name, threads=1)
    assert name_of(type(model)) == made
    assert f"/predictions/{made} " in (tmp_path / name / "README.md").read_text()


def test_an_application_may_be_called_a_template(tmp_path: Path) -> None:
    written = [file.name for file in write_application(tmp_path / "my-template", "plain")]
    assert "test_my_template.py" in written
    assert "`test_my_template.py`" in (tmp_path / "my-template" / "README.md").read_text()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "hello").mkdir()
    with pytest.raises(SetupError, match="exists already and is left as it is"):
        write_application(tmp_path / "hello", "plain")
    assert list((tmp_path / "hello").iterdir()) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SetupError, match="exists already"):
        write_application(tmp_path / "file", "plain")
    with pytest.raises(SetupError, match="cannot be made"):
        write_application(tmp_path / "file" / "below", "plain")


@pytest.mark.parametrize("name", ["Hello", "1st", "a b", "-x", "h\u00e9"])
def test_a_name_that_will_not_do_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(SetupError, match="use small letters"):
        write_application(tmp_path / name, "plain")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="choose one of plain, image, onnx"):
        write_application(tmp_path / "hello", "video")

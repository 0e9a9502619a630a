"""Writes a new application into a folder: files that run at once and are there to be changed."""

from __future__ import annotations

import builtins
import keyword
import re
import shutil
from pathlib import Path

from timebound.errors import SetupError

TEMPLATES = {
    "plain": "text in, answer out; no model file needed",
    "image": "a picture in the body, decoded within limits",
    "onnx": "a network in an ONNX file, with a small one to begin with",
    "sklearn": "a model of scikit-learn, trained and turned into ONNX by its train.py",
    "text": "texts of any length, padded into one batch, and a small network for them",
    "function": "a plain function with types, the shortest there is",
}
_HERE = Path(__file__).parent
_EVERY = "every"  # what all applications have
_DIGITS = _HERE / "digits.onnx"  # trained by scripts/train_digits.py
_TEXT = ".txt"  # what is filled in; other files are copied as they are
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}")


def write_application(folder: Path, template: str) -> list[Path]:
    """Write `template` into `folder`, which must not exist yet; returns the files written."""
    name = folder.name
    if not _NAME.fullmatch(name):
        raise SetupError(f"{name!r} cannot be a name: use small letters, digits, '-' and '_', a letter first")
    if template not in TEMPLATES:
        raise SetupError(f"there is no template {template!r}; choose one of {', '.join(TEMPLATES)}")
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise SetupError(f"{folder} exists already and is left as it is; choose another name") from None
    except OSError as error:
        raise SetupError(f"{folder} cannot be made: {error.strerror}") from None
    written = []
    for part in (_HERE / "templates" / _EVERY, _HERE / "templates" / template):
        for source in filter(Path.is_file, part.rglob("*")):
            written.append(folder / _named(str(source.relative_to(part)), name))
            _write(source, written[-1], name)
    if template == "onnx":
        written.append(folder / "model.onnx")
        shutil.copyfile(_DIGITS, written[-1])
    return sorted(written)


def _write(source: Path, file: Path, name: str) -> None:
    file.parent.mkdir(exist_ok=True)
    if source.suffix == _TEXT:
        file.write_text(_named(source.read_text(), name))
    else:
        shutil.copyfile(source, file)


def _named(text: str, name: str) -> str:
    """A template's text or file name for the application `name`."""
    # pytest wants each test file of a run to have a name of its own, and Python one without dashes.
    names = {
        "test_template": f"test_{name.replace('-', '_')}",
        "template_call": _function_name(name),
        "Template": _class_name(name),
        "template": name,
    }
    return re.sub("|".join(names), lambda found: names[found[0]], text.removesuffix(_TEXT))


def _class_name(name: str) -> str:
    made = "".join(part.capitalize() for part in re.split(r"[-_]", name) if part)
    # `class None` is no Python, and `class ValueError` would hide the real one.
    return f"{made}Model" if hasattr(builtins, made) else made


def _function_name(name: str) -> str:
    made = name.replace("-", "_")
    return f"{made}_model" if keyword.iskeyword(made) or hasattr(builtins, made) else made

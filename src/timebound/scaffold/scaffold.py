"""Writes a new application into a folder: files that run at once and are there to be changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from timebound.errors import SetupError

TEMPLATES = {
    "plain": "text in, answer out; no model file needed",
    "image": "a picture in the body, decoded within limits",
    "onnx": "a network in an ONNX file, with a small one to begin with",
}
_HERE = Path(__file__).parent
_EVERY = "every"  # what all applications have
_DIGITS = _HERE / "digits.onnx"  # trained by scripts/train_digits.py
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}")


def write_application(folder: Path, template: str) -> list[Path]:
    """Write `template` into `folder`, which must not exist yet; returns the files written."""
    name = folder.name
    if not _NAME.fullmatch(name):
        raise SetupError(f"{name!r} cannot be a name: use small letters, digits, '-' and '_', a letter first")
    if template not in TEMPLATES:
        raise SetupError(f"there is no template {template!r}; choose one of {', '.join(TEMPLATES)}")
    class_name = "".join(part.capitalize() for part in re.split(r"[-_]", name) if part)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise SetupError(f"{folder} exists already and is left as it is; choose another name") from None
    except OSError as error:
        raise SetupError(f"{folder} cannot be made: {error.strerror}") from None
    written = []
    for source in (*(_HERE / "templates" / _EVERY).iterdir(), *(_HERE / "templates" / template).iterdir()):
        text = source.read_text().replace("Template", class_name).replace("template", name)
        written.append(folder / source.name.removesuffix(".txt"))
        written[-1].write_text(text)
    if template == "onnx":
        written.append(folder / "model.onnx")
        shutil.copyfile(_DIGITS, written[-1])
    return sorted(written)

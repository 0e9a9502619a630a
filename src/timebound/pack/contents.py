"""What of an app goes into a pack: its big files into models/, the rest into app/, and what it needs of Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from timebound.errors import SetupError
from timebound.pack.folder import LIST

MODELS, APP = "models", "app"
_BIG_BYTES = 1_000_000
"""Files from this size on are data, and seldom change with the code."""
_MODEL_ENDS = (".onnx", ".pt2", ".pt", ".data", ".npz", ".npy", ".safetensors", ".bin")
_REQUIREMENTS = "requirements.txt"
_OTHER = re.compile(r"(?:-r|--requirement[\s=])(?!\s*\w+://)\s*(.+)")
_LOCAL = re.compile(r"(?:-c|--constraint[\s=]|-e|--editable[\s=])(?!\s*\S+://)|\.{0,2}/|\.$|file:")
"""Constraints, folders and wheels that lie beside it."""
_NEVER = (".*", "__pycache__", "node_modules", "*.pyc", "*.egg-info", "*~")
_MARKS = ("pyvenv.cfg", LIST)
"""What folders hold that are no part of an app: virtual environments, and packs."""
_MOST_BYTES = 20_000_000_000
_MOST_FILES = 10_000


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """An app's files, by their path in it."""

    served: str
    files: Mapping[str, Path]
    model_bytes: int
    requirements: Sequence[str] = ()
    """Lines of the app's own requirements.txt."""

    def copies(self) -> dict[str, Path]:
        """Where each file goes in the pack."""
        return {f"{MODELS if is_model(file) else APP}/{name}": file for name, file in self.files.items()}

    @property
    def has_models(self) -> bool:
        """Whether there is a folder of models."""
        return any(map(is_model, self.files.values()))

    @property
    def has_code(self) -> bool:
        """Whether there is anything else; a model file alone needs none."""
        return not all(map(is_model, self.files.values()))

    @property
    def needs_torch(self) -> bool:
        """Whether some file is torch's."""
        return any(name.endswith((".pt", ".pt2")) for name in self.files)


def is_model(file: Path) -> bool:
    """Whether a file counts as a model: by its name or its size."""
    return file.suffix in _MODEL_ENDS or file.stat().st_size >= _BIG_BYTES


def read_contents(target: Path, out: Path, left_out: Sequence[str], *, follows_links: bool = False) -> Contents:
    """The files of `target`: a model file alone, an app.py with its folder, or a folder; less `left_out` patterns.

    Raises `SetupError` at a link that leads out of the app's folder, unless it `follows_links`: what lies behind it,
    perhaps a whole disk or somebody's keys, would be in the image.
    """
    folder = target if target.is_dir() else target.parent
    if folder.resolve() == out.resolve():
        raise SetupError(f"--out {out} is the app's own folder; give another: --out {out / 'deploy'}")
    if target.is_file() and target.suffix != ".py":
        # Weights of a large network may lie beside it, in files that begin with its name.
        found = [file for file in sorted(folder.iterdir()) if file == target or file.name.startswith(f"{target.name}.")]
    else:
        unwanted = [*_NEVER, *(pattern.rstrip("/") for pattern in left_out)]
        home = None if follows_links else folder.resolve()
        found = list(_walk(folder, "", unwanted, {folder.resolve(), out.resolve()}, home))
    if len(found) > _MOST_FILES or sum(file.stat().st_size for file in found) > _MOST_BYTES:
        raise SetupError(f"{folder} holds more than an app: {len(found)} files; give the app a folder of its own, or "
                         "leave things out: --leave-out data")  # fmt: skip
    files = {file.relative_to(folder).as_posix(): file for file in found}
    wanted = folder / _REQUIREMENTS
    return Contents(
        served=target.name if target.is_file() else "app.py" if "app.py" in files else ".",
        files=files,
        model_bytes=sum(file.stat().st_size for file in found if is_model(file)),
        requirements=_lines(wanted.resolve()) if wanted.is_file() else (),
    )


def _walk(here: Path, path: str, unwanted: Sequence[str], seen: set[Path], home: Path | None) -> Iterator[Path]:
    """Every file that belongs to an app: nothing hidden (.git, .env), no virtual environment, no pack.

    With a `home`, links must lead to somewhere in it.
    """
    for entry in sorted(here.iterdir()):
        name = f"{path}{entry.name}"
        if any(fnmatch(entry.name, each) or fnmatch(name, each) for each in unwanted):
            continue
        if entry.is_symlink():
            _check_link(entry, name, home)
        if entry.is_file():
            yield entry
        elif entry.is_dir() and not any((entry / mark).exists() for mark in _MARKS):
            inner = entry.resolve()
            if inner not in seen:  # links may lead in a circle
                seen.add(inner)
                yield from _walk(entry, f"{name}/", unwanted, seen, home)


def _check_link(link: Path, name: str, home: Path | None) -> None:
    if not link.exists():
        raise SetupError(f"{link} is a link to {link.readlink()}, which is not there; fix it, or leave it out: "
                         f"--leave-out {name}")  # fmt: skip
    if home is not None and not link.resolve().is_relative_to(home):
        raise SetupError(f"{link} is a link to {link.resolve()}, outside the app's folder; if that is to be in the "
                         f"image, give --follow-links; else leave it out: --leave-out {name}")  # fmt: skip


def _lines(file: Path, seen: AbstractSet[Path] = frozenset()) -> list[str]:
    """What a requirements file asks for, with the files that it names: the image gets this one alone."""
    try:
        lines = [line.partition(" #")[0].strip() for line in file.read_text("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} cannot be read: {error}; write it as UTF-8") from None
    found: list[str] = []
    for line in lines:
        if other := _OTHER.match(line):
            inner = (file.parent / other[1]).resolve()
            found += _lines(inner, {*seen, file}) if inner not in {*seen, file} else []
        elif _LOCAL.match(line):
            raise SetupError(f"{file} asks for {line!r}, which the image does not have; write there what is to be "
                             "installed, as name==1.2.3 or a URL")  # fmt: skip
        elif line and not line.startswith("#"):
            found.append(line)
    return found

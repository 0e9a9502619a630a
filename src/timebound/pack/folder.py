"""The folder of a pack: what we wrote is renewed, what its owner changed is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path, PurePosixPath

import msgspec

from timebound.errors import SetupError

LIST = ".timebound-pack.json"
"""The file by which a pack is known."""
_PIECE = 2**20

Content = bytes | Path
"""What to write: the bytes, or the file to copy."""


class Done(StrEnum):
    """What became of a file."""

    WROTE = "wrote"
    RENEWED = "renewed"
    SAME = "same"
    KEPT = "kept"
    OFFERED = "offered"
    """Kept, and what we would have written lies beside it."""
    REPLACED = "replaced"
    REMOVED = "removed"


class _Listed(msgspec.Struct):
    """By file, the hash of what we wrote last, or offered."""

    files: dict[str, str] = msgspec.field(default_factory=dict)


class Folder:
    """Writes files below `root`; a list in it remembers what was written."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._list = root / LIST
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._listed = msgspec.json.decode(self._list.read_bytes(), type=_Listed).files
        except FileNotFoundError:
            self._listed = {}
        except FileExistsError:
            raise SetupError(f"{root} is a file; give a folder: --out deploy") from None
        except OSError as error:
            raise SetupError(f"{root} cannot be made or read: {error.strerror}") from None
        except msgspec.DecodeError:
            raise SetupError(f"{self._list} cannot be read; delete it, and all files count as changed by you") from None

    def write(self, files: Mapping[str, Content], *, is_forced: bool) -> Iterator[tuple[Done, str]]:
        """Write them; says of each what became of it. Nothing that was changed is lost unless it is forced."""
        try:
            for name, content in files.items():
                yield self._write_one(name, content, is_forced), name
        except OSError as error:
            raise SetupError(f"{error.filename} cannot be read or written: {error.strerror}") from None
        finally:
            listed = msgspec.json.encode(_Listed(self._listed), order="sorted")
            self._list.write_bytes(msgspec.json.format(listed) + b"\n")

    def remove_others(self, below: str, kept: Mapping[str, Content]) -> Iterator[tuple[Done, str]]:
        """Remove what we wrote below a folder and would not write now, unless it was changed."""
        for name in [name for name in self._listed if name.startswith(f"{below}/") and name not in kept]:
            file = self._root / name
            was = self._listed.pop(name)
            if file.is_file() and _hash(file) == was:
                file.unlink()
                _remove_empty(file.parent, self._root)
                yield Done.REMOVED, name

    def _write_one(self, name: str, content: Content, is_forced: bool) -> Done:
        file = self._root / PurePosixPath(name)
        new, was = _hash(content), self._listed.get(name)
        done = self._settle(file, content, new, was, is_forced)
        self._listed[name] = new
        return done

    def _settle(self, file: Path, content: Content, new: str, was: str | None, is_forced: bool) -> Done:
        if not file.exists():
            _put(file, content)
            return Done.WROTE
        now = _hash(file)
        if now == new:
            _open_up(file, content)
            return Done.SAME
        if now == was:
            _put(file, content)
            return Done.RENEWED
        if is_forced:
            _put(file, content)
            return Done.REPLACED
        if was == new:
            return Done.KEPT  # ours has not changed since
        _put(file.with_name(f"{file.name}.new"), content)
        return Done.OFFERED


def _remove_empty(folder: Path, root: Path) -> None:
    """This folder and those around it that hold nothing any more: a file may come in the place of one."""
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _hash(content: Content) -> str:
    found = hashlib.sha256()
    if isinstance(content, bytes):
        found.update(content)
    else:
        with content.open("rb") as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    return found.hexdigest()


def _put(file: Path, content: Content) -> None:
    """Whole or not at all."""
    _make(file.parent)
    fresh = file.with_name(f".{file.name}.part")
    if isinstance(content, bytes):
        fresh.write_bytes(content)
    else:
        with content.open("rb") as source, fresh.open("wb") as copy:
            while piece := source.read(_PIECE):
                copy.write(piece)
    _open_up(fresh, content)
    fresh.replace(file)


def _make(folder: Path) -> None:
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir()
        folder.chmod(0o755)


def _open_up(file: Path, content: Content) -> None:
    """Let everybody read it, whatever the umask here: who runs it elsewhere is another user. Programs stay such."""
    runs = isinstance(content, Path) and content.stat().st_mode & 0o100
    now, wanted = file.stat().st_mode, 0o755 if runs else 0o644
    if now & wanted != wanted:
        file.chmod(now | wanted)

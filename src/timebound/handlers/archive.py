"""Unpacks model archives (`.mar`, which is zip, and `.tar.gz`), and writes nothing outside the folder.

An archive may come from anywhere. Refused are names that lead out of the folder, links and everything else that is no
plain file, names that are there twice, and archives that hold too much: too many files, or far more bytes than they are
long. What is counted are the bytes that come out, not those that the archive says.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from timebound.errors import SetupError

ZIPPED, TARRED = (".mar", ".zip"), (".tar.gz", ".tgz")
MOST_FILES = 10_000
MOST_TIMES, SPARE = 100, 100_000_000
"""Unpacked, an archive may be so many times as long as it is, and so many bytes more."""

_MOST_AT_ONCE = 16_000_000
"""Bytes that are read into memory in one go: a directory of 10,000 files takes about one million."""
_CHUNK = 1_000_000
_DEEPEST, LONGEST_PART, LONGEST = 32, 255, 1_000
"""How many folders deep a file may lie, and bytes of one name and of a whole path."""
_BAD = re.compile(r"[\x00-\x1f\x7f\\]|^[A-Za-z]:")


class Bounds(msgspec.Struct, frozen=True):
    """How much an archive may hold."""

    files: int
    size: int

    @classmethod
    def of(cls, archive: Path) -> Bounds:
        """Those for this archive."""
        return cls(MOST_FILES, archive.stat().st_size * MOST_TIMES + SPARE)


def is_archive(file: Path) -> bool:
    """Whether this file has the name of an archive."""
    return file.name.endswith((*ZIPPED, *TARRED))


def unpack(archive: Path, folder: Path, bounds: Bounds | None = None) -> None:
    """Write what an archive holds into `folder`, which is made; raises `SetupError` and leaves no folder behind."""
    bounds = bounds or Bounds.of(archive)
    folder.mkdir(mode=0o700, parents=True)
    try:
        with _readable(archive):
            entries = _zipped(archive) if archive.name.endswith(ZIPPED) else _tarred(archive)
            Unpacked(archive.name, folder, bounds).take(entries)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class Entry(msgspec.Struct, frozen=True):
    """A file of an archive: its name, as it says, and its bytes."""

    name: str
    source: IO[bytes]


class Unpacked:
    """A folder that is being filled, and how much is in it."""

    def __init__(self, label: str, folder: Path, bounds: Bounds) -> None:
        self._label = label
        self._folder = folder
        self._bounds = bounds
        self._room = shutil.disk_usage(folder).free
        self._files = 0
        self._folders: set[tuple[str, ...]] = set()
        self._size = 0

    def take(self, entries: Iterator[Entry]) -> None:
        """Write every file; raises `SetupError` for the first that may not be."""
        for entry in entries:
            self._files += 1
            if self._files > self._bounds.files:
                raise self._wrong(f"it holds more than {self._bounds.files} files")
            parts = checked_name(self._label, entry.name)
            self._folders.update(tuple(parts[:depth]) for depth in range(1, len(parts)))
            if len(self._folders) > self._bounds.files:
                raise self._wrong(f"it holds more than {self._bounds.files} folders")
            file = self._folder.joinpath(*parts)
            try:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            except (FileExistsError, NotADirectoryError):
                raise self._wrong(f"{entry.name!r} is in it twice, or is a file and a folder") from None
            with open(number, "wb") as sink:
                self._copy(entry.source, sink)

    def _copy(self, source: IO[bytes], sink: IO[bytes]) -> None:
        while chunk := source.read(_CHUNK):
            self._size += len(chunk)
            if self._size > self._bounds.size:
                raise self._wrong(f"unpacked it is over {self._bounds.size} bytes, far more than it is long")
            if self._size > self._room:
                raise self._wrong(f"the disk of {self._folder.parent} has no room for it")
            sink.write(chunk)

    def _wrong(self, why: str) -> SetupError:
        return SetupError(f"{self._label} is not unpacked: {why}")


def checked_name(label: str, name: str) -> list[str]:
    """The parts of a path that stays inside its folder; raises `SetupError` for any other."""
    parts = name.split("/")
    is_bad = name.startswith("/") or _BAD.search(name) or any(part in ("", ".", "..") for part in parts)
    if is_bad or len(parts) > _DEEPEST or len(name.encode()) > LONGEST:
        raise SetupError(f"{label} is not unpacked: {name[:200]!r} is no path inside a folder")
    if any(len(part.encode()) > LONGEST_PART for part in parts):
        raise SetupError(f"{label} is not unpacked: {name[:80]!r}... is too long a name")
    return parts


@contextmanager
def _readable(archive: Path) -> Iterator[None]:
    """What the libraries say of archives that are broken, as `SetupError`."""
    try:
        yield
    except SetupError:
        raise
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError, LookupError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise SetupError(f"{archive.name} is no archive that can be read: {why}; make it again") from error
    except (NotImplementedError, MemoryError, OverflowError, RecursionError) as error:
        raise SetupError(f"{archive.name} is no archive that can be read ({type(error).__name__})") from error
    except OSError as error:
        raise SetupError(f"{archive.name} cannot be unpacked: {error}") from error


# ---------------------------------------------------------------------- zip


class _Sober(io.BufferedReader):
    """A file that is not read into memory as a whole, whatever the archive says of its directory's length."""

    def __init__(self, file: Path) -> None:
        super().__init__(io.FileIO(file))
        self._length = file.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = self._length - self.tell() if size is None or size < 0 else size
        if wanted > _MOST_AT_ONCE:
            raise zipfile.BadZipFile("its directory is far too long")
        return super().read(size)


def _zipped(archive: Path) -> Iterator[Entry]:
    with _Sober(archive) as file, zipfile.ZipFile(file) as opened:
        if len(opened.infolist()) > MOST_FILES:
            raise SetupError(f"{archive.name} is not unpacked: it holds more than {MOST_FILES} files")
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.is_dir() and kind in (0, stat.S_IFDIR):
                checked_name(archive.name, info.filename.rstrip("/"))
                continue
            if kind not in (0, stat.S_IFREG):
                raise _no_file(archive, info.filename)
            if info.flag_bits & 0x1:
                raise SetupError(f"{archive.name} is not unpacked: {info.filename!r} is encrypted")
            with opened.open(info) as source:
                yield Entry(info.filename, source)


# ---------------------------------------------------------------------- tar


class _Bounded(gzip.GzipFile):
    """Unpacks as it is read; never much at once, for a tar's own entries may have any length."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0 or size > _MOST_AT_ONCE:
            raise tarfile.ReadError("one of its headers is far too long")
        return super().read(size)


def _tarred(archive: Path) -> Iterator[Entry]:
    """The files of a tar; all lie in one folder, which is left out."""
    source: Any = _Bounded(archive, "rb")
    opened: Any
    with source, tarfile.open(fileobj=source, mode="r:") as opened:
        for count, member in enumerate(opened):
            opened.members.clear()  # it remembers every header that it has seen
            if count > 2 * MOST_FILES:
                raise SetupError(f"{archive.name} is not unpacked: it holds more than {MOST_FILES} files and folders")
            name = member.name.removeprefix("./")
            if name == "." and member.isdir():
                continue
            checked_name(archive.name, name)
            if member.isdir():
                continue
            content = opened.extractfile(member) if member.isreg() else None
            if content is None:
                raise _no_file(archive, member.name)
            yield Entry(name.partition("/")[2] or name, content)


def _no_file(archive: Path, name: str) -> SetupError:
    return SetupError(f"{archive.name} is not unpacked: {name[:200]!r} is a link or no plain file")

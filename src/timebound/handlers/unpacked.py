"""Keeps unpacked archives: each is unpacked once, for all workers and for the next start.

They lie in `~/.cache/timebound/archives`, closed to other users, by the archive's path, length and time. Whoever uses
one holds a lock on it, which the system lets go of when the process ends, however it ends; what an earlier archive of
the same path left is removed once nobody holds it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from timebound.errors import SetupError
from timebound.handlers.archive import unpack

_held: dict[Path, int] = {}
"""Open files with locks on the folders that this process uses, for as long as it lives."""


def unpacked(archive: Path, *, root: Path | None = None) -> Path:
    """The folder with what this archive holds; a folder is taken as it is. Raises `SetupError`."""
    if archive.is_dir():
        return archive.resolve()
    archive = archive.resolve()
    try:
        told = archive.stat()
    except OSError as error:
        raise SetupError(f"{archive} cannot be read: {error.strerror}") from None
    place = (root or _root()) / _mark(str(archive))
    folder = place / _mark(f"{told.st_size} {told.st_mtime_ns} {told.st_ino}")
    if folder in _held:
        return folder
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(place / "turn"):
        if not folder.is_dir():
            unfinished = place / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unpack(archive, unfinished)
            unfinished.rename(folder)
        _held[folder] = _hold(folder)
        _tidy(place)
    return folder


def _mark(text: str) -> str:
    return blake2b(text.encode(), digest_size=10).hexdigest()


def _root() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    for folder in (cache / "timebound" / "archives", Path(tempfile.gettempdir()) / f"timebound-archives-{os.getuid()}"):
        with suppress(OSError, RuntimeError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
            # In a folder such as /tmp another user may have been first to take the name.
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and os.access(folder, os.W_OK):
                folder.chmod(0o700)
                return folder
    raise SetupError(f"there is no folder to unpack archives in; make {cache} writable or set XDG_CACHE_HOME")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _hold(folder: Path) -> int:
    lock = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _tidy(place: Path) -> None:
    """Remove what nobody uses any more."""
    for folder in [each for each in place.iterdir() if each.is_dir() and each not in _held]:
        lock = folder.with_suffix(".lock")
        with lock.open("ab") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)

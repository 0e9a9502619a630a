"""The Unix socket at which a server answers its operator on this machine: where it is, by the server's port.

Its folder is closed to everyone but the user who runs the server, so the system vouches for who is asking. A loopback
address does not: a proxy on this machine has one too, whoever it asks for.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path


def folders() -> list[Path]:
    """Where such sockets may be, the best place first."""
    user = os.getuid()
    given = os.environ.get("XDG_RUNTIME_DIR")
    places = [*([Path(given)] if given else []), Path(f"/run/user/{user}")]
    return [*(place / "timebound" for place in places), Path(f"/tmp/timebound-{user}")]


class OperatorSocket:
    """A listening socket and its file. Of several servers on one port the newest has the file."""

    def __init__(self, folder: Path, port: int) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._file, unfinished = folder / f"{port}.sock", folder / f".{port}.{os.getpid()}"
        try:
            unfinished.unlink(missing_ok=True)
            self.sock.bind(str(unfinished))
            unfinished.chmod(0o600)
            self.sock.listen(64)
            self._inode = unfinished.stat().st_ino
            unfinished.rename(self._file)  # whoever finds it is answered
        except OSError:
            self.sock.close()
            raise

    def remove(self) -> None:
        """Take the file away, unless another server has put its own there."""
        with suppress(OSError):
            if self._file.stat().st_ino == self._inode:
                self._file.unlink()


def make(port: int) -> OperatorSocket | None:
    """The socket for the server on this port; None if no folder can be had for it."""
    for folder in folders():
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_closed_to_others(folder):
                _tidy(folder)
                return OperatorSocket(folder, port)
    return None


def find(port: int) -> Path | None:
    """The socket of the server on this port that this user runs; None if there is none that answers."""
    files = [folder / f"{port}.sock" for folder in folders() if _is_closed_to_others(folder)]
    return next((file for file in files if _is_answered(file)), None)


def _is_closed_to_others(folder: Path) -> bool:
    # In a folder such as /tmp another user may have been first to take the name.
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _is_answered(file: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(str(file))
        except OSError:
            return False
    return True


def _tidy(folder: Path) -> None:
    """Take away what servers left that were killed."""
    for file in folder.glob("*.sock"):
        if not _is_answered(file):
            file.unlink(missing_ok=True)

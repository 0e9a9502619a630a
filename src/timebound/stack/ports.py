"""Ports of a stack: whether one is free before anything starts, and whose it is afterwards."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from timebound.errors import SetupError

_LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""


def check_free(host: str, port: int, whose: str, flag: str = "--port") -> None:
    """Raise `SetupError` unless `whose` could listen there now: the port is taken for a moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended hold nobody up
        try:
            sock.bind((host, port))
            sock.listen()
        except OSError as error:
            raise SetupError(_why(host, port, whose, error, flag)) from None


def has_port(pid: int, port: int) -> bool:
    """Whether this process listens on this port; True too if the system does not let us look."""
    try:
        files = [os.readlink(file.path) for file in os.scandir(f"/proc/{pid}/fd")]
    except PermissionError:  # a program with rights of its own, such as an nginx that may take port 80
        return True
    except OSError:  # it has ended, or closed a file while we looked
        return False
    return any(f"socket:[{inode}]" in files for inode in _listening(port))


def _listening(port: int) -> list[str]:
    found = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, _, state, *rest = line.split()
            if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                found.append(rest[5])
    return found


def _why(host: str, port: int, whose: str, error: OSError, flag: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} is taken on {host}, and {whose} needs it; stop the other server or choose one with {flag} "
            "(the servers take the ports after it)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights; choose one above 1023 with {flag}"
    return f"cannot listen on {host} port {port}: {error.strerror}; check --host and {flag}"

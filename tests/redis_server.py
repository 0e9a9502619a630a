"""A real redis-server of one's own, to be hurt as a test likes; and a plain client to look inside."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import hiredis

_PATIENCE_S = 20.0


class RedisServer:
    """`redis-server` on a free port and a Unix socket, keeping nothing on disk; ended with the `with` block."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="timebound-redis-")
        self.path = Path(self._folder.name) / "socket"
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        """Start it, empty; returns when it answers."""
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", str(self.path)]
        nothing = ["--save", "", "--appendonly", "no", "--dir", self._folder.name]
        command = ["redis-server", *where, *nothing, *self._options]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        eventually(self._answers)

    def speak_tls(self, certificate: Path, *more: str) -> None:
        """From the next start on its port speaks TLS alone; the folder has a cert.pem and a key.pem."""
        cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
        files = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
        port = ("--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no")
        self._options = (*self._options, *port, *files, *more)

    def kill(self) -> None:
        """End it without a word, whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_PATIENCE_S)
            self._process = None

    def pause(self) -> None:
        """It stays connected and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on, first with what came in meanwhile."""
        self._signal(signal.SIGCONT)

    def ask(self, *command: str | bytes) -> Any:
        """One command on a connection of its own; raises what Redis replies as error."""
        with Plain(str(self.path)) as plain:
            return plain.ask(*command)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "redis-server left at once"
        try:
            return bool(self.ask("PING"))
        except OSError:
            return False
        except hiredis.ReplyError:  # it wants a password first, and so is there
            return True


class Plain:
    """A blocking connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_PATIENCE_S)
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def ask(self, *command: str | bytes) -> Any:
        self._socket.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stubs know one word only
        while (reply := self._reader.gets()) is Ellipsis:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("redis-server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(look: Callable[[], bool]) -> None:
    """Look until it is so."""
    end = time.monotonic() + _PATIENCE_S
    while not look():
        assert time.monotonic() < end, "redis-server does not answer"
        time.sleep(0.01)

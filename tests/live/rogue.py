"""A server on a raw socket that behaves as a test tells it, for clients that must survive everything."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

Act = Callable[["Guest", int], bool]
"""What to do with the so-many-th request of all; False closes the connection."""


def ok(body: bytes = b"{}", *headers: str) -> bytes:
    """A whole answer."""
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Guest:
    """One connection, seen from the server."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.received = b""

    def read(self) -> bytes | None:
        """The next whole request, as its body; None when the client has left."""
        while True:
            head, found, rest = self.received.partition(b"\r\n\r\n")
            _, named, after = head.lower().partition(b"content-length:")
            length = int(after.split(b"\r\n", 1)[0]) if named else 0
            if found and len(rest) >= length:
                self.received = rest[length:]
                return rest[:length]
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self.received += data

    def say(self, data: bytes) -> bool:
        self.socket.sendall(data)
        return True

    def reset(self) -> bool:
        """Close with a reset rather than a farewell."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


class Rogue:
    """Listens while a `with` block lasts; `bodies` has what it was sent."""

    def __init__(self, act: Act, tls: tuple[Path, Path] | None = None) -> None:
        self._act = act
        self._tls = tls
        self._lock = threading.Lock()
        self._is_over = False
        self._guests: list[socket.socket] = []
        self.bodies: list[bytes] = []
        self.connections = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._welcome, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for guest in self._guests:
            with suppress(OSError):
                guest.shutdown(socket.SHUT_RDWR)
            guest.close()
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/ask"

    def _welcome(self) -> None:
        with suppress(OSError):
            while not self._is_over:
                connection, _ = self._listener.accept()
                self._guests.append(connection)
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if self._tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*self._tls)
                connection = context.wrap_socket(connection, server_side=True)
                self._guests.append(connection)
            guest = Guest(connection)
            goes_on = True
            while goes_on and (body := guest.read()) is not None:
                if not body:  # the look at /v1/models
                    goes_on = guest.say(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                with self._lock:
                    self.bodies.append(body)
                    number = len(self.bodies)
                goes_on = self._act(guest, number)
            connection.close()


def after(seconds: float, data: bytes) -> Act:
    """Answer so late."""

    def act(guest: Guest, number: int) -> bool:
        time.sleep(seconds)
        return guest.say(data)

    return act

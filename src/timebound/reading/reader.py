"""The gateway's side of a process that reads bodies."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from contextlib import suppress

import msgspec

from timebound.errors import RequestError
from timebound.reading.wire import HEAD, LENGTH, Looked, Said, receive
from timebound.workers.launch import spawn

log = logging.getLogger("timebound.reading")

LIMIT_S = 1.0
"""A body that takes longer is made to take long."""
_NICER = 5
"""Below the gateway, above the workers, which wait for it."""


class Job(msgspec.Struct, eq=False):
    """A body to be looked at, and what must be known for it."""

    facts: bytes
    told: bytes
    body: bytes
    needs_print: bool


class Reader:
    """One process and its socket; but for `close` all of it happens in one thread."""

    def __init__(self) -> None:
        self.pid = 0
        self._sock: socket.socket | None = None
        self._is_closed = False

    def look(self, job: Job) -> Looked | bytes | RequestError:
        """What the process says of a body."""
        for _ in range(2):  # the process may have been killed since it was last asked
            try:
                sock = self._sock or self._start()
                head = HEAD.pack(len(job.facts), len(job.body), len(job.told), job.needs_print)
                sock.sendall(head + job.facts + job.told)
                sock.sendall(job.body)
                said = msgspec.msgpack.decode(receive(sock, LENGTH.unpack(receive(sock, LENGTH.size))[0]), type=Said)
            except TimeoutError:
                self.end()
                return RequestError("the body takes too long to read", code="bad_input")
            except (OSError, EOFError, msgspec.DecodeError) as error:
                if self._is_closed:
                    break
                log.warning("the process that reads large bodies was lost: %s", error or type(error).__name__)
                self.end()
            else:
                return RequestError(said.detail, code=said.code, field=said.field) if said.code else _found(said)
        return RequestError("large bodies cannot be read now", code="not_ready")

    def close(self) -> None:
        """Whoever waits for what it says waits no more."""
        self._is_closed = True
        if (sock := self._sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.settimeout(10.0)  # until it has answered once: a busy machine takes long to start it
            number = theirs.fileno()
            self.pid = spawn(
                [sys.executable, "-m", "timebound.reading.process", str(number)], dict(os.environ), {number: number}
            )
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self.pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER))
        self._sock = ours
        receive(ours, 1)
        ours.settimeout(LIMIT_S)
        return ours

    def end(self) -> None:
        """Let the process go."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self.pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0


def _found(said: Said) -> Looked | bytes:
    return said.read if said.read is not None else (said.key, said.size, said.fingerprint)

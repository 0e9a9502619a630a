"""A real server in processes of its own, for the length of a `with` block; and waiting for what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import httpx
from tests.live.wire import Wire

from timebound.operator_socket import find

MODELS = Path(__file__).parent.parent / "models"
PATIENCE_S = 20.0
"""How long anything may take on a busy machine before a test gives up on it."""

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], what: str, within_s: float = PATIENCE_S) -> Found:
    """Look again and again until there is something to see; fails after `within_s`, saying what was awaited."""
    end = time.monotonic() + within_s
    pause = threading.Event()
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"waited {within_s:g} s in vain: {what}"
        pause.wait(0.02)


class Serving:
    """`timebound serve TARGET` on a free port or a given one. Entered when it is ready, or already when it listens."""

    def __init__(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        until_ready: bool = True,
        port: int = 0,
        folder: Path | None = None,
    ) -> None:
        self._arguments = [str(argument) for argument in arguments]
        self._environment = {**clean_environment(), **(environment or {})}
        self._folder = folder
        self._until_ready = until_ready
        self._heard = threading.Condition()
        self._lines: list[str] = []
        self._has_said_all = False
        self._asked_port = str(port)
        self.port = 0

    def __enter__(self) -> Self:
        verb = [] if self._arguments[0] in ("demo", "torchserve") else ["serve"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "timebound.cli", *verb, *self._arguments, "--port", self._asked_port],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._environment,
            cwd=self._folder,
            start_new_session=True,
            text=True,
        )
        assert self.process.stderr is not None
        self._listener = threading.Thread(target=self._listen, args=(self.process.stderr,), daemon=True)
        self._listener.start()
        try:
            self._find_port()
        except BaseException:
            self._end()
            raise
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False, verify=False)
        self.operator = self.by_socket()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.http.close()
        self.operator.close()
        self._end()
        if error is not None:
            error.add_note(f"the server said:\n{self.said}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The gateway's process."""
        return self.process.pid

    @property
    def said(self) -> str:
        """Everything on stderr so far."""
        with self._heard:
            return "".join(self._lines)

    def lines(self, message: str) -> list[dict[str, Any]]:
        """The log lines with this message so far."""
        with self._heard:
            records = [json.loads(line) for line in self._lines if line.startswith("{")]
        return [record for record in records if record["message"].startswith(message)]

    def wait_for_line(self, message: str) -> dict[str, Any]:
        """The first log line with this message, once it is there."""
        with self._heard:
            self._heard.wait_for(lambda: self._has_said_all or self.lines(message), PATIENCE_S)
        lines = self.lines(message)
        assert lines, f"no line {message!r}; the server said:\n{self.said}"
        return lines[0]

    def wire(self) -> Wire:
        """A connection of one's own, to send any bytes on."""
        return Wire(self.port)

    def gauge(self, name: str) -> float:
        """A number from /metrics."""
        lines = self.http.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"timebound_{name} "))

    def is_holding(self, *, running: int, queued: int = 0) -> bool:
        """Whether that many requests are in workers, and that many wait for one."""
        pending, waiting = self.gauge("requests_pending"), self.gauge("requests_queued")
        return (pending, waiting) == (running + queued, queued)

    def workers(self) -> list[dict[str, Any]]:
        """The workers as /v1/models shows them."""
        workers: list[dict[str, Any]] = self.http.get("/v1/models").json()["workers"]
        return workers

    def is_ready(self) -> bool:
        return self.http.get("/readyz").status_code == 200

    def by_socket(self, timeout: float = PATIENCE_S) -> httpx.Client:
        """Asks as the operator does, if the server has a socket for that."""
        socket = find(self.port)
        transport = httpx.HTTPTransport(uds=str(socket)) if socket is not None else None
        return httpx.Client(base_url="http://localhost", timeout=timeout, trust_env=False, transport=transport)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the gateway alone, as a process manager does."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once the gateway has left; its last words are in `said` by then."""
        code = self.process.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)
        return code

    def processes_left(self) -> list[int]:
        """Those of the server's processes that still live."""
        return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _group(pid) == self.pid]

    def _listen(self, stderr: IO[str]) -> None:
        for line in stderr:
            with self._heard:
                self._lines.append(line)
                self._heard.notify_all()
        stderr.close()
        with self._heard:
            self._has_said_all = True
            self._heard.notify_all()

    def _find_port(self) -> None:
        if self._until_ready:
            address = self.wait_for_line("ready")["at"]
            self.port = httpx.URL(address).port or 0
            return
        ports = eventually(lambda: _listening_ports(self.pid) or self.process.poll() is not None, "a listening port")
        assert isinstance(ports, list), f"it left instead of listening:\n{self.said}"
        self.port = int(self._asked_port) or ports[0]

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # the group: workers too, whatever state they are in
        self.process.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)


def clean_environment() -> dict[str, str]:
    """This process's environment without what would configure a server by accident."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIMEBOUND_")} | {
        "TIMEBOUND_PROFILES": "none"
    }


def memory_of(pid: int) -> int:
    """Bytes of memory a process holds now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def _group(pid: int) -> int | None:
    """The process group of a living process; None for one that is gone or only waits to be buried."""
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(group) if state != "Z" else None


def _listening_ports(pid: int) -> list[int]:
    """TCP ports a process listens on; the log names them only once the models are ready."""
    own = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            own.add(os.readlink(entry).removeprefix("socket:[").rstrip("]"))
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in own]

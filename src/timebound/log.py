"""Log lines to stderr: readable on a terminal, JSON otherwise; and one function that sets logging up."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from typing import Any, TextIO

import msgspec

# What every LogRecord has; anything else on a record came in as a field through `extra`. A name that begins with an
# underscore is some library's own mark (Ray puts one on every record).
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}

_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}


_MOST_LINES = 10_000
_FAREWELL_S = 2.0


class HumanFormatter(logging.Formatter):
    """`12:04:31.250 WARNING worker: left  pid=71 code=-9`."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        room = record.name.removeprefix("timebound.")
        fields = "".join(f"  {name}={value}" for name, value in _fields(record).items())
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        line = f"{clock}.{int(record.msecs):03d} {level}{room}: {record.getMessage()}{fields}"
        if self._colour and record.levelname in _COLOURS:
            line = f"{_COLOURS[record.levelname]}{line}\x1b[0m"
        return line + _trace(self, record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        trace = _trace(self, record)
        if trace:
            line["trace"] = trace.strip()
        return msgspec.json.encode(line, enc_hook=str).decode()


class ThreadedHandler(logging.Handler):
    """Writes in a thread of its own: whoever reads the log may stand still, and nobody here waits for it.

    What it cannot get rid of is dropped, and how much is said once it can write again.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._dropped = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        if self._lines.qsize() >= _MOST_LINES:
            self._dropped += 1
            return
        try:
            self._lines.put(self.format(record))
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Write what is left, if that can be done soon."""
        if not self._is_closed:
            self._is_closed = True
            self._lines.put(None)
            self._thread.join(timeout=_FAREWELL_S)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                told = logging.makeLogRecord({"name": "timebound.log", "levelno": logging.WARNING, "count": dropped})
                told.levelname, told.msg = "WARNING", "log lines dropped"
                line = f"{self.format(told)}\n{line}"
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads it any more
                continue


def set_up_logging(
    level: str,
    *,
    as_json: bool | None = None,
    is_threaded: bool = False,
    colour: bool | None = None,
    name: str | None = None,
) -> None:
    """Send all loggers to stderr at `level`, or only those below `name` in a process whose logging is somebody else's.

    Format and colour follow the terminal unless something else is said.
    """
    human = sys.stderr.isatty() if as_json is None else not as_json
    # In somebody else's process `sys.stderr` may be something that they keep for themselves.
    stream = sys.stderr if name is None else sys.__stderr__ or sys.stderr
    handler: logging.Handler = ThreadedHandler(stream) if is_threaded else logging.StreamHandler(stream)
    handler.setFormatter(
        HumanFormatter(colour=sys.stderr.isatty() if colour is None else colour) if human else JsonFormatter()
    )
    if name is not None:
        ours = logging.getLogger(name)
        ours.handlers, ours.propagate = [handler], False
        ours.setLevel(level.upper())
        return
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # our own lines tell a server's life


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and not name.startswith("_")}


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return f"\n{formatter.formatException(record.exc_info)}" if record.exc_info else ""

"""One file of SQLite: opened, written in one go, only read; and, if it is damaged, set aside for a new one."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger("timebound.history")

PARTS = ("-wal", "-shm")
"""What SQLite keeps beside a file."""
ASIDE = ".damaged"
"""What the name of a damaged file ends in."""

Statement = tuple[str, Iterable[tuple[Any, ...]]]
"""With the values of each time that it is run."""


def open_file(file: Path, make: str) -> sqlite3.Connection:
    """A file to write, by one thread; raises `sqlite3.Error` or `OSError`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.executescript(make)
    return connection


def in_one(connection: sqlite3.Connection, statements: Iterable[Statement]) -> None:
    connection.execute("BEGIN")
    try:
        for statement, rows in statements:
            connection.executemany(statement, rows)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK") if connection.in_transaction else None
        raise


def address_to_read(file: Path) -> str:
    """What SQLite is told of a file that is only read.

    Beside one that nobody writes it makes files of its own, unless it is told that nobody will: where that may not be.
    """
    file = file.resolve()
    is_written = file.with_name(f"{file.name}{PARTS[0]}").exists()
    may_be_beside = os.access(file.parent, os.W_OK, effective_ids=True)
    return f"{file.as_uri()}?mode=ro{'' if is_written or may_be_beside else '&immutable=1'}"


def read_only(file: Path) -> sqlite3.Connection:
    """A file to read, while it is written or not."""
    connection = sqlite3.connect(address_to_read(file), uri=True, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection


def is_damage(error: sqlite3.Error) -> bool:
    """Whether a file is not as SQLite left it; another error may be gone at the next try."""
    if isinstance(error, sqlite3.OperationalError):
        return "Could not decode" in str(error)
    return isinstance(error, sqlite3.DatabaseError)


class Beside:
    """One file beside those of outcomes. A damaged one is set aside, the last of them is kept, and a new one begun."""

    def __init__(self, file: Path, make: str) -> None:
        self._file = file
        self._make = make
        self._connection: sqlite3.Connection | None = None
        self._is_checked = False
        self.set_aside = 0

    def open(self) -> sqlite3.Connection:
        """It, to be written; anew if somebody took it away, for what is written into it now nobody finds."""
        self.check()
        if self._connection is not None and not self._file.exists():
            self.close()
        if self._connection is None:
            self._connection = open_file(self._file, self._make)
        return self._connection

    def check(self) -> None:
        """Look it over, the first time: who reads finds nothing in a damaged one, and may blame others for it."""
        if not self._is_checked and self._file.exists():
            self._set_aside_if_damaged()
        self._is_checked = True

    def write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> sqlite3.Connection:
        """Add rows, if need be into a new file."""
        try:
            in_one(self.open(), [(statement, rows)])
        except sqlite3.DatabaseError as error:
            if not is_damage(error) or not self._set_aside_if_damaged():
                raise
            in_one(self.open(), [(statement, rows)])
        return self.open()

    def _set_aside_if_damaged(self) -> bool:
        """Whether it was: another server that writes here too may have begun a new one already."""
        self.close()
        error = _damage_of(self._file)
        if error is None:
            return False
        aside = self._file.with_suffix(ASIDE)
        for part in ("", *PARTS):
            aside.with_name(aside.name + part).unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                self._file.with_name(self._file.name + part).rename(aside.with_name(aside.name + part))
        self.set_aside += 1
        said = "the history's file %s is damaged; it is now %s, and a new one is begun"
        log.error(said, self._file, aside.name, extra={"error": error})
        return True

    def close(self) -> None:
        """Leave a whole file behind."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _damage_of(file: Path) -> str | None:
    """What is wrong with a file; None if nothing is."""
    connection = sqlite3.connect(file)
    try:
        said = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return str(error)
    finally:
        connection.close()
    return None if said == "ok" else said

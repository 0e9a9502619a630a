"""API keys: a TOML file with their hashes and terms, and who is behind a key that was sent.

    [shop]                         # whose key it is
    hash = "sha256:9f86d0..."      # from `timebound keys new shop`; a list while an old key is being replaced
    rate = 50                      # requests per second
    burst = 100                    # requests at once after a pause
    concurrent = 16                # requests in work at the same time
    priority = 1
    models = ["digits"]

Keys are random and long, so one round of SHA-256 keeps them: there is nothing to guess that a slow hash would
protect, and every request pays for the hash.
"""

from __future__ import annotations

import re
import secrets
import tomllib
from collections.abc import Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from math import inf
from pathlib import Path
from typing import Any

from timebound.admission.client import Client, Terms
from timebound.errors import SetupError

PREFIX = "tb_"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_KEY = 256
"""Characters of a key that is looked up; ours have 46."""


def new_key() -> str:
    """A key nobody can guess."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(key: bytes) -> str:
    """What the keys file holds of a key."""
    return "sha256:" + sha256(key).hexdigest()


def check_name(name: str) -> None:
    """Raise `SetupError` unless this can be the name of a key's holder."""
    if not _NAME.fullmatch(name):
        raise SetupError(f"the name {name!r} is no name for a key; use up to 64 letters, digits, '.', '_' or '-'")


class Keys:
    """The keys of a file. `read` again takes over what has changed in it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._by_hash: dict[str, tuple[bytes, Client]] = {}
        self.clients: dict[str, Client] = {}
        self.read()

    def read(self) -> None:
        """Take the file as it is now; raises `SetupError` and changes nothing if it cannot be used."""
        holders = _holders(self._file)
        clients = {name: self.clients.get(name) or Client(terms) for name, (terms, _) in holders.items()}
        for name, (terms, _) in holders.items():
            clients[name].adopt(terms)
        self.clients = clients
        self._by_hash = {
            hashed: (hashed.encode(), clients[name]) for name, (_, hashes) in holders.items() for hashed in hashes
        }

    def find(self, key: bytes) -> Client | None:
        """Whose key this is, or None."""
        if len(key) > _MAX_KEY:
            return None
        hashed = hash_of(key)
        # How long the look-up takes tells at most something of a hash, and nobody can choose a key by its hash.
        known, client = self._by_hash.get(hashed, (b"", None))
        return client if compare_digest(known, hashed.encode()) else None


def _holders(file: Path) -> dict[str, tuple[Terms, list[str]]]:
    try:
        table = tomllib.loads(file.read_text())
    except OSError as error:
        raise SetupError(f"the keys file {file} cannot be read: {error.strerror}; check --keys") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        cure = '; a name has one table: write its keys as hash = ["OLD", "NEW"]' if "twice" in str(error) else ""
        raise SetupError(f"the keys file {file} is not valid TOML: {error}{cure}") from None
    if not table:
        raise SetupError(f"the keys file {file} has no keys; make one with: timebound keys new NAME >> {file}")
    holders = {name: _holder(file, name, entry) for name, entry in table.items()}
    hashes = [hashed for _, own in holders.values() for hashed in own]
    if len(set(hashes)) < len(hashes):
        raise SetupError(f"the keys file {file} has the same hash twice; make a key for each name")
    return holders


def _holder(file: Path, name: str, entry: Any) -> tuple[Terms, list[str]]:
    where = f"the keys file {file}: [{name}]"
    check_name(name)
    if not isinstance(entry, dict):
        raise SetupError(f"{where} must be a table with a hash; make one with: timebound keys new {name}")
    for option in entry:
        if option not in _FORMS:
            raise SetupError(f"{where} has an unknown option {option!r}; known are {', '.join(_FORMS)}")
    for option, (is_right, wanted) in _FORMS.items():
        if option in entry and not is_right(entry[option]):
            raise SetupError(f"{where} {option} must be {wanted}")
    if "hash" not in entry:
        raise SetupError(f"{where} has no hash; make one with: timebound keys new {name}")
    hashes = [entry["hash"]] if isinstance(entry["hash"], str) else entry["hash"]
    terms = {option: value for option, value in entry.items() if option != "hash"}
    if "models" in terms:
        terms["models"] = frozenset(terms["models"])
    return Terms(name=name, **terms), hashes


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low < value < high


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_hash(value: Any) -> bool:
    hashes = [value] if isinstance(value, str) else value
    return (
        isinstance(hashes, list)
        and bool(hashes)
        and all(isinstance(each, str) and _HASH.fullmatch(each) for each in hashes)
    )


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


_FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "hash": (_is_hash, 'a text such as "sha256:..." with 64 hexadecimal digits, or a list of them'),
    "rate": (_number(0, inf), "a number of requests per second above zero"),
    "burst": (_number(0, inf), "a number of requests above zero"),
    "concurrent": (_whole(1, 10**6), "a whole number from 1 to 1000000"),
    "priority": (_whole(-99, 99), "a whole number from -99 to 99"),
    "models": (_is_names, "a list of names of models"),
}

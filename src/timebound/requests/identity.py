"""What a request is known by: its key, and the fingerprint of its body."""

from __future__ import annotations

from timebound.errors import BadInput
from timebound.store.fingerprint import of_bytes, of_json
from timebound.types import Body, ModelInfo

MAX_KEY = 256
"""Characters of a key; longer ones are refused."""

OURS = "\0"
"""Keys that the server makes begin with this, and no client's key may hold it: the two can never meet."""


class Identity:
    """How one model tells its requests apart; for a `version` that is asked for by name, apart from the others too."""

    __slots__ = ("_content", "_ignore", "_is_json", "_version", "is_by_content")

    def __init__(self, info: ModelInfo, version: str = "") -> None:
        self.is_by_content = info.cache == "content"
        """Whether a request without a key is known by its body."""
        self._is_json = info.body is Body.JSON
        self._ignore = frozenset(info.key_ignore)
        self._content = f"{OURS}content:{info.version}:"
        self._version = version

    def of(self, key: str | None, body: bytes, print_: bytes = b"") -> tuple[str, bytes]:
        """A request's key and its body's fingerprint, if not known yet; without a key, the one made of its content."""
        print_ = print_ or (of_json(body, self._ignore) if self._is_json else of_bytes(body))
        if key is None:
            return self._content + print_.hex(), print_
        # One version was asked for: another one's answer to the same key will not do.
        return f"{OURS}@{self._version}/{key}" if self._version else key, print_


def of_request(key: str) -> str:
    """The key of the whole request, of one that may be an item's: its key with the item's place behind it.

    So `http/intake.py` makes them. A request known by its content has nothing but its own.
    """
    whole, _, place = key.rpartition(OURS)
    return whole if place.isdigit() and whole else key


def check_key(key: str) -> None:
    """Raise `BadInput` if a client cannot have this key."""
    if len(key) > MAX_KEY:
        raise BadInput(f"the key has more than {MAX_KEY} characters")
    if OURS in key:
        raise BadInput("the key must not hold the character U+0000")

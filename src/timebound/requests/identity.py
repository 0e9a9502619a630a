"""What a request is known by: its key, and the fingerprint of its body."""

from __future__ import annotations

from timebound.store.fingerprint import of_bytes, of_json
from timebound.types import Body, ModelInfo

MAX_KEY = 256
"""Characters of a key; longer ones are refused."""


class Identity:
    """How one model tells its requests apart; for a `version` that is asked for by name, apart from the others too."""

    __slots__ = ("_content", "_ignore", "_is_json", "_version", "is_by_content")

    def __init__(self, info: ModelInfo, version: str = "") -> None:
        self.is_by_content = info.cache == "content"
        """Whether a request without a key is known by its body."""
        self._is_json = info.body is Body.JSON
        self._ignore = frozenset(info.key_ignore)
        self._content = f"content:{info.version}:"
        self._version = version

    def of(self, key: str | None, body: bytes) -> tuple[str, bytes]:
        """A request's key and its body's fingerprint; without a key, the one that is made of its content."""
        print_ = of_json(body, self._ignore) if self._is_json else of_bytes(body)
        if key is None:
            return self._content + print_.hex(), print_
        # One version was asked for: another one's answer to the same key will not do.
        return f"@{self._version}/{key}" if self._version else key, print_

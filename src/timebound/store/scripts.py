"""The Lua scripts beside this file, as Redis takes them: loaded once per connection, then called by their hash."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and its hash."""

    text: bytes
    sha: str


def _read(name: str) -> Script:
    text = (Path(__file__).parent / name).read_bytes()
    return Script(text, sha1(text).hexdigest())


CLAIM, COMPLETE, ABANDON = _read("claim.lua"), _read("complete.lua"), _read("abandon.lua")

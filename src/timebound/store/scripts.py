"""Names of keys and channels, and the commands that call the scripts: all that Redis is told of a key."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path

import msgspec

from timebound.store.base import Key
from timebound.store.lease import Command, Lease
from timebound.store.value import LONGEST

CLAIM, COMPLETE, ABANDON = (
    Path(__file__).with_name(f"{name}.lua").read_bytes() for name in ("claim", "complete", "abandon")
)
SHA = {script: sha1(script).hexdigest() for script in (CLAIM, COMPLETE, ABANDON)}
"""Scripts are loaded once per connection, then called by their hash."""

_CLAIM_KEPT_MS = 4_000_000
"""Longer than the longest deadline. A claim ends with its owner's lease; this only clears it away."""
_DEAF_MS = 250
"""An owner whose inbox has been closed for so long is dead; one that lost its connection is back before."""


class Place(msgspec.Struct, frozen=True):
    """Where this gateway's keys and messages are: first parts of the names of keys and of channels."""

    keys: str
    channels: str
    gateway: str
    brings_values: bool = True
    """Whether a message has the result in it."""

    @property
    def inbox(self) -> str:
        return f"{self.channels}:i:{self.gateway}"

    @property
    def everyone(self) -> str:
        """The channel for what concerns all gateways."""
        return f"{self.channels}:all"

    @property
    def results(self) -> str:
        """How the name of every result begins."""
        return f"{self.keys}:r:"

    def result(self, key: Key) -> str:
        return f"{self.keys}:r:{key[0]}:{key[1]}"

    def claim(self, key: Key) -> str:
        return f"{self.keys}:c:{key[0]}:{key[1]}"

    def from_claim(self, name: str) -> Key:
        model, _, key = name.removeprefix(f"{self.keys}:c:").partition(":")
        return model, key


def claim(place: Place, lease: Lease, key: Key, fingerprint: bytes, instead_of: bytes) -> Command:
    """Who computes this key? `instead_of` is a value that counts as not there."""
    garbage = sha1(instead_of).hexdigest() if instead_of else ""
    keys = (place.result(key), place.claim(key), *lease.keys)
    who = (lease.owner, fingerprint, place.inbox, lease.prefix)
    bounds = (str(_CLAIM_KEPT_MS), garbage, str(LONGEST), f"{place.channels}:i:", str(_DEAF_MS))
    return "EVALSHA", SHA[CLAIM], str(len(keys)), *keys, *who, *bounds


def complete(place: Place, key: Key, value: bytes, keep_s: float) -> Command:
    """Keep this result and wake who waits for it."""
    keep_ms, message = str(max(1, int(keep_s * 1e3))), "1" if place.brings_values else "0"
    return "EVALSHA", SHA[COMPLETE], "2", place.result(key), place.claim(key), value, keep_ms, message


def abandon(place: Place, lease: Lease, key: Key) -> Command:
    """Free this key, if it is ours."""
    return "EVALSHA", SHA[ABANDON], "1", place.claim(key), lease.owner

"""The fingerprint of a request's body: two attempts of one request have the same."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

import msgspec

from timebound.store.value import FINGERPRINT_BYTES

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def of_bytes(body: bytes) -> bytes:
    """The fingerprint of a body taken as it is."""
    return blake2b(body, digest_size=FINGERPRINT_BYTES).digest()


def of_json(body: bytes, ignore: Collection[str]) -> bytes:
    """The fingerprint of a JSON object: its fields in any order, without those in `ignore`."""
    try:
        fields = _fields.decode(body)
    except (msgspec.DecodeError, RecursionError):  # JSON, but no object, or one at the very edge of what is read
        return of_bytes(body)
    digest = blake2b(digest_size=FINGERPRINT_BYTES)
    for name in sorted(fields):
        if name not in ignore:
            value = memoryview(fields[name])
            digest.update(b"%d:%b%d:" % (len(name), name.encode(), len(value)))  # lengths: no two lists read alike
            digest.update(value)
    return digest.digest()

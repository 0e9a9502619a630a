"""Bodies that come packed by gzip or deflate, unpacked up to a bound, and bodies packed for who takes that."""

from __future__ import annotations

import re
import zlib

from timebound.errors import RequestError

GZIP, DEFLATE = "gzip", "deflate"
_WINDOWS = {GZIP: 31, "x-gzip": 31, DEFLATE: 15}
"""What zlib calls the two; its numbers for the largest window, with the wrapping that each has."""
_BARE_DEFLATE = -15
_LONGEST = 1_000
"""Bytes of an `Accept-Encoding`, which an event loop reads in a tenth of a millisecond."""
_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")
_LEVEL = 1
"""The fastest: most of what can be saved is saved at once, and somebody waits."""


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """The body itself; raises `RequestError` if it is over `most` bytes, broken, or packed in another way."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOWS:
        raise RequestError(
            f"content-encoding {encoding!r} is not taken; gzip and deflate are", code="unsupported_encoding"
        )
    try:
        return _unpack(body, _WINDOWS[encoding], most)
    except zlib.error as error:
        if encoding == DEFLATE:
            try:  # some clients leave zlib's wrapping out
                return _unpack(body, _BARE_DEFLATE, most)
            except zlib.error:
                pass
        raise RequestError(f"the body is no {encoding}: {error}", code="bad_input") from None


def _unpack(body: bytes, window: int, most: int) -> bytes:
    unpacker = zlib.decompressobj(window)
    plain = unpacker.decompress(body, most + 1)
    if len(plain) > most:
        raise RequestError(f"the body is over {most} bytes when it is unpacked", code="body_too_large")
    if not unpacker.eof:
        raise zlib.error("it ends too early")
    if unpacker.unused_data:
        raise zlib.error("something follows its end")
    return plain


def wanted(accept_encoding: bytes) -> str | None:
    """The packing that this `Accept-Encoding` likes best; None if it takes neither, or likes the body as it is more.

    One that is far too long gets the body as it is.
    """
    if len(accept_encoding) > _LONGEST:
        return None
    weights: dict[str, float] = {}
    for choice in accept_encoding.decode("latin-1").lower().split(","):
        name, _, weight = choice.partition(";")
        weights[name.strip()] = _weight(weight)
    others = weights.get("*", 0.0)
    best = max((GZIP, DEFLATE), key=lambda packing: weights.get(packing, others))  # the first of equals
    liked = weights.get(best, others)
    return best if liked > 0.0 and liked >= weights.get("identity", 0.0) else None


def _weight(parameter: str) -> float:
    """What `q=0.5` says: 1 if there is none, 0 if it cannot be read."""
    name, _, value = parameter.replace(" ", "").partition("=")
    if not name:
        return 1.0
    is_number = name == "q" and _WEIGHT.fullmatch(value) is not None
    return float(value) if is_number else 0.0


def packed(body: bytes, encoding: str) -> bytes:
    """The body in one of the two packings."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[encoding])
    return packer.compress(body) + packer.flush()

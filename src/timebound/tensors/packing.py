"""Bodies that come packed by gzip or deflate, unpacked up to a bound, and bodies packed for who takes that."""

from __future__ import annotations

import zlib

from timebound.errors import RequestError

GZIP, DEFLATE = "gzip", "deflate"
_WINDOWS = {GZIP: 31, "x-gzip": 31, DEFLATE: 15}
"""What zlib calls the two; its numbers for the largest window, with the wrapping that each has."""
_BARE_DEFLATE = -15
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
    """Which of the two packings this `Accept-Encoding` allows; None without one."""
    for choice in accept_encoding.decode("latin-1").lower().split(","):
        name, _, weight = choice.partition(";")
        if name.strip() in (GZIP, DEFLATE) and weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            return name.strip()
    return None


def packed(body: bytes, encoding: str) -> bytes:
    """The body in one of the two packings."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[encoding])
    return packer.compress(body) + packer.flush()

"""The fingerprint of a request's body: two attempts of one request have the same, however they are written.

Of JSON the values count: the order of fields at any depth, spaces, escapes, and whether a number is written `1`, `1.0`
or `1e0` are the same to it. So each field's value is hashed as this file would write it. Most are so written already.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal
from hashlib import blake2b

import msgspec

from timebound.store.value import FINGERPRINT_BYTES

MOST_VALUES = 100_000
"""A body with more commas than this is taken as it is: to read its values would take a second."""
_MOST_FIELDS = 64
"""An object with more fields is written as a whole: a field by itself takes a microsecond."""
_LONGEST_NUMBER = 300
"""Digits; a longer number takes time that grows with its square."""
_TINY = (re.compile(rb"e-[0-9]{3}"), re.compile(rb"E-[0-9]{3}"))  # together they would take seven times as long
"""Numbers so near to zero that msgspec takes a hundred times as long to read them."""
_FEW_DASHES = 32

_raws = msgspec.json.Decoder(dict[str, msgspec.Raw])
_values = msgspec.json.Decoder()
_write = msgspec.json.Encoder(order="deterministic").encode
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_QUOTE, _SHORT = 34, 18
_PLAIN = re.compile(rb"[0-9]+|true|false|null")
_LARGE = re.compile(rb"[0-9](?:\.[0-9]+)?e[0-9]+")
_MOST_LARGE = 100


def of_bytes(body: bytes) -> bytes:
    """The fingerprint of a body taken as it is."""
    return blake2b(body, digest_size=FINGERPRINT_BYTES).digest()


def of_parts(*parts: bytes | memoryview) -> bytes:
    """That of a body that lies in several places; their lengths must follow from the first."""
    digest = blake2b(digest_size=FINGERPRINT_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


_SAMPLES, _SAMPLE_BYTES = 64, 1024


def of_sample(body: bytes) -> bytes:
    """A mark of a large body that costs little: its length, and a kilobyte from 64 places."""
    step = max(1, (len(body) - _SAMPLE_BYTES) // (_SAMPLES - 1))
    parts = [body[step * place : step * place + _SAMPLE_BYTES] for place in range(_SAMPLES)]
    return of_bytes(b"%d:" % len(body) + b"".join(parts) + body[-_SAMPLE_BYTES:])


def of_json(body: bytes, ignore: Collection[str]) -> bytes:
    """The fingerprint of a JSON body; of an object without the fields in `ignore`."""
    if len(body) > MOST_VALUES and body.count(b",") > MOST_VALUES:
        return of_bytes(body)
    try:
        return _of_object(body, ignore) if body.lstrip()[:1] == b"{" else of_bytes(_rewrite(body))
    except (msgspec.DecodeError, ValueError, RecursionError):  # no JSON, or at the very edge of what is read
        return of_bytes(body)


def rewritten(text: bytes | memoryview) -> bytes:
    """A JSON value as the fingerprint has it; as it came where that would take too long or cannot be."""
    came = bytes(text)
    if len(came) > MOST_VALUES and came.count(b",") > MOST_VALUES:
        return came
    try:
        return _rewrite(came)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return came


def _of_object(body: bytes, ignore: Collection[str]) -> bytes:
    fields = _raws.decode(body)
    names = sorted(fields) if not ignore else sorted([name for name in fields if name not in ignore])
    if len(names) > _MOST_FIELDS:
        values = _values.decode(readable(body))
        text = _write({name: values[name] for name in names})
        return of_bytes(b"{}" + _with_plain_numbers(text))
    has_escapes = b"\\" in body
    digest = blake2b(digest_size=FINGERPRINT_BYTES)
    for name in names:
        value: memoryview | bytes = memoryview(fields[name])
        # A text without escapes and a short whole number are written as they came; so are true, false and null.
        if has_escapes if value[0] == _QUOTE else len(value) > _SHORT or _PLAIN.fullmatch(value) is None:
            value = _rewrite(value)
        digest.update(b"%d:%b%d:" % (len(name), name.encode(), len(value)))  # lengths: no two lists read alike
        digest.update(value)
    return digest.digest()


def readable(text: bytes | memoryview) -> bytes:
    """The same JSON, if its numbers can be read without much ado; raises `ValueError`."""
    text = bytes(text)
    if b"0" * _LONGEST_NUMBER in text.translate(_ZEROS) or has_tiny_numbers(text):
        raise ValueError("numbers that no measurement ever gave")
    return text


def has_tiny_numbers(text: bytes) -> bool:
    """Whether there may be numbers in it that take long to read; costs next to nothing where few dashes are."""
    at = text.find(b"-")
    for _ in range(_FEW_DASHES):
        if at < 0:
            return False
        if at and text[at - 1] in b"eE" and len(text) > at + 3 and text[at + 1 : at + 4].isdigit():
            return True
        at = text.find(b"-", at + 1)
    return at >= 0 and any(tiny.search(text, at - 1) is not None for tiny in _TINY)


def _rewrite(text: bytes | memoryview) -> bytes:
    """A JSON value as the fingerprint has it; raises if it cannot be read."""
    return _with_plain_numbers(_write(_values.decode(readable(text))))


def _with_plain_numbers(text: bytes) -> bytes:
    """What msgspec wrote, with whole numbers written as such: not `1.0`, not `1e16`."""
    if b"." not in text and b"e" not in text:  # one character is found many times faster than two
        return text
    # Texts are left alone: what lies between quotes, once escaped ones are out of the way. No control character is left
    # in what was written, so two of them can stand for what is put back.
    has_escapes = b"\\" in text
    marked = text.replace(b"\\\\", b"\1\1").replace(b'\\"', b"\2\2") if has_escapes else text
    parts = marked.split(b'"')
    between = written = b'"'.join(parts[::2]) + b","
    for end in (b",", b"]", b"}"):
        between = between.replace(b".0" + end, end)
    between = _LARGE.sub(_whole, between, _MOST_LARGE)  # in a long list of them only the first, for the time it takes
    if between == written:
        return text
    parts[::2] = between[:-1].split(b'"')
    marked = b'"'.join(parts)
    return marked.replace(b"\2\2", b'\\"').replace(b"\1\1", b"\\\\") if has_escapes else marked


def _whole(number: re.Match[bytes]) -> bytes:
    return b"%d" % int(Decimal(number[0].decode())) if int(number[0].rpartition(b"e")[2]) < 40 else number[0]

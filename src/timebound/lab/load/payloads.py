"""Payloads from a folder, a file of JSON lines or a text, and the answers expected for them."""

from __future__ import annotations

import math
import mimetypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from timebound.errors import SetupError
from timebound.lab.load.client import Reply
from timebound.lab.load.requests import JSON, Payload

_MISSING = object()


def from_folder(folder: Path) -> list[Payload]:
    """One payload per file, in the order of names, as it lies there; hidden files and subfolders do not count."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise SetupError(f"{folder} holds no file to send")
    return [Payload(file.read_bytes(), media_of(file), name=file.name) for file in files]


def from_lines(
    file: Path, expected_in: str | None = None, field: str | None = None, tolerance: float = 0.0
) -> list[Payload]:
    """One payload per line of JSON; `expected_in` names a field that is the expected answer and is not sent."""
    payloads = []
    for number, line in enumerate(_read(file).splitlines(), 1):
        if not line.strip():
            continue
        body = _json(line, f"{file}, line {number}")
        payload = Payload(line.strip(), has_places=True, name=str(number))
        if expected_in is not None:
            if not isinstance(body, dict) or expected_in not in body:
                raise SetupError(f"{file}, line {number} has no field {expected_in!r} to expect")
            expected = Expectation(body.pop(expected_in), field, tolerance)
            payload = replace(payload, body=msgspec.json.encode(body), is_right=expected.is_met)
        payloads.append(payload)
    if not payloads:
        raise SetupError(f"{file} holds no line to send")
    return payloads


def from_text(text: str) -> list[Payload]:
    """One payload: the text itself, or `@file` for what a file holds."""
    if text.startswith("@"):
        file = Path(text[1:])
        body = _read(file)
        media = media_of(file)
        return [Payload(body, media, has_places=media == JSON or media.startswith("text/"))]
    body = text.encode()
    return [Payload(body, JSON if _is_json(body) else "text/plain", has_places=True)]


def media_of(file: Path) -> str:
    """The content type that a file's name suggests."""
    return mimetypes.guess_type(file.name)[0] or "application/octet-stream"


@dataclass(frozen=True)
class Expectation:
    """What a full answer must be; one of less quality is not looked at, it may well differ."""

    value: Any
    field: str | None = None
    tolerance: float = 0.0

    def is_met(self, reply: Reply) -> bool:
        if reply.quality != "full":
            return True
        try:
            got = msgspec.json.decode(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return isinstance(self.value, str) and reply.body == self.value.encode()
        if self.field is None:
            return same(self.value, got, self.tolerance)
        value = look_up(self.value, self.field)
        return same(self.value if value is _MISSING else value, look_up(got, self.field), self.tolerance)


def expecting(payloads: Sequence[Payload], file: Path, field: str | None, tolerance: float) -> list[Payload]:
    """The payloads, each with its expected answer from a file.

    The file holds an object (payload name: answer), a line or list entry per payload in their order, or one for all.
    """
    answers = _answers(file)
    if isinstance(answers, dict):
        missing = [payload.name for payload in payloads if payload.name not in answers]
        if missing:
            raise SetupError(f"{file} has no answer for {missing[0]}; it must name every payload")
        chosen = [answers[payload.name] for payload in payloads]
    elif len(answers) == 1:
        chosen = answers * len(payloads)
    elif len(answers) == len(payloads):
        chosen = answers
    else:
        raise SetupError(f"{file} holds {len(answers)} answers for {len(payloads)} payloads; give one each")
    return [
        replace(payload, is_right=Expectation(answer, field, tolerance).is_met)
        for payload, answer in zip(payloads, chosen, strict=True)
    ]


def _answers(file: Path) -> dict[str, Any] | list[Any]:
    text = _read(file)
    if file.suffix == ".json":
        answers = _json(text, str(file))
        return answers if isinstance(answers, dict | list) else [answers]
    return [_json(line, f"{file}, line {n}") for n, line in enumerate(text.splitlines(), 1) if line.strip()]


def look_up(value: Any, path: str) -> Any:
    """The part of a JSON value at a dotted path; a marker that equals nothing if it is not there."""
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value


def same(expected: Any, got: Any, tolerance: float) -> bool:
    """Whether two JSON values agree; numbers may differ by `tolerance`, relative to the larger or absolute."""
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(same(expected[name], got[name], tolerance) for name in expected)
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(partial(same, tolerance=tolerance), expected, got))
    if {type(expected), type(got)} <= {int, float}:  # no bool
        return math.isclose(expected, got, rel_tol=tolerance, abs_tol=tolerance)
    return type(expected) is type(got) and bool(expected == got)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SetupError(f"cannot read {file}: {error.strerror}") from None


def _json(text: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{where} is not JSON: {error}") from None


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A template such as {"n": {i}} becomes JSON only when it is filled.
        return text.lstrip()[:1] in (b"{", b"[")
    return True

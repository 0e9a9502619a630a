"""The bodies a model class offers to try on the page: from a list on the class, or from a folder beside its file."""

from __future__ import annotations

import base64
import mimetypes
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from timebound.errors import SetupError
from timebound.model import Model
from timebound.schema import follow
from timebound.types import Sample

MOST = 100
MAX_BYTES = 4_000_000
"""All samples of a model together, as the page fetches them."""


def read_samples(cls: type[Model], schema: dict[str, Any] | None) -> list[Sample]:
    """The samples of a class; raises `SetupError` for what cannot be one."""
    where = f"class {cls.__name__}"
    if isinstance(cls.samples, str):
        samples = list(_from_folder(cls, schema, where))
    else:
        samples = [_from_entry(entry, is_raw=schema is None, where=where) for entry in cls.samples]
    if len(samples) > MOST:
        raise SetupError(f"{where} has {len(samples)} samples; the page shows at most {MOST}")
    size = len(msgspec.json.encode(samples))
    if size > MAX_BYTES:
        raise SetupError(f"{where}: its samples take {size} bytes; at most {MAX_BYTES} are shown, so give smaller ones")
    return samples


def _from_entry(entry: Any, *, is_raw: bool, where: str) -> Sample:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("title"), str) or "body" not in entry:
        raise SetupError(f'{where}: a sample is {entry!r:.80}; give {{"title": "...", "body": ...}}')
    title, body = entry["title"], entry["body"]
    if is_raw:
        if isinstance(body, str):
            return _raw(title, body.encode(), "text/plain")
        if isinstance(body, bytes):
            return _raw(title, body, None)
        raise SetupError(f"{where}: sample {title!r} has a {type(body).__name__} as body; give bytes or a text")
    try:
        return Sample(title, msgspec.to_builtins(body))
    except TypeError as error:
        raise SetupError(f"{where}: sample {title!r} is not JSON: {error}; use plain numbers, texts, lists") from None


def _from_folder(cls: type[Model], schema: dict[str, Any] | None, where: str) -> Iterator[Sample]:
    """One sample per file, by name: a .json file is a body, a picture fills the picture field of the example."""
    home = getattr(sys.modules.get(cls.__module__), "__file__", None) or "."
    folder = Path(home).resolve().parent / str(cls.samples)
    if not folder.is_dir():
        raise SetupError(f"{where}: samples folder not found: {folder}; it is looked for beside the served file")
    for file in sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith(".")):
        media = mimetypes.guess_type(file.name)[0]
        if schema is None:
            yield _raw(file.stem, file.read_bytes(), media)
        elif file.suffix == ".json":
            yield Sample(file.stem, _read(file, where))
        elif media is not None and media.startswith("image/"):
            yield Sample(file.stem, _filled(cls, schema, file, where))
        else:
            raise SetupError(f"{where}: sample {file.name} is neither a .json file nor a picture; remove it")


def _filled(cls: type[Model], schema: dict[str, Any], file: Path, where: str) -> dict[str, Any]:
    field = picture_field(schema)
    if field is None:
        raise SetupError(
            f"{where}: sample {file.name} is a picture, and Request has no field of type tb.Image64 for it"
        )
    example = cls.example if isinstance(cls.example, Mapping) else {}
    return {**example, field: base64.b64encode(file.read_bytes()).decode()}


def picture_field(schema: dict[str, Any]) -> str | None:
    """The first field that is declared to carry a picture."""
    for name, part in follow(schema, schema.get("$defs", {})).get("properties", {}).items():
        choices = part.get("anyOf", [part])
        if any(str(choice.get("contentMediaType", "")).startswith("image/") for choice in choices):
            return str(name)
    return None


def _read(file: Path, where: str) -> Any:
    try:
        return msgspec.json.decode(file.read_bytes())
    except msgspec.DecodeError as error:
        raise SetupError(f"{where}: sample {file.name} is not valid JSON: {error}") from None


def _raw(title: str, body: bytes, media: str | None) -> Sample:
    return Sample(title, data=base64.b64encode(body).decode(), media=media)

"""What a model archive says of itself: `MAR-INF/MANIFEST.json` and `model-config.yaml`, checked.

Options that mean something here are read, the others are named: `Described.ignored` is for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from timebound.errors import SetupError
from timebound.handlers.archive import checked_name

FOLDER, FILE = "MAR-INF", "MANIFEST.json"
USUAL_TIMEOUT_S = 120.0
"""TorchServe's own."""
RUNTIMES = ("python", "python2", "python3")
OURS = "timebound"
"""The section of `model-config.yaml` that other servers do not know."""

_MOST_BYTES = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_WORKERS = "each worker process holds every model; set --workers"
_WAITING = "batches are made by the deadlines"
IGNORED: Mapping[str, str] = {
    "minWorkers": _WORKERS,
    "maxWorkers": _WORKERS,
    "maxBatchDelay": _WAITING,
    "startupTimeout": "set --load-timeout",
    "deviceType": "the handler sees the devices of the machine",
    "deviceIds": "set CUDA_VISIBLE_DEVICES",
    "parallelType": "one process computes a model",
    "parallelLevel": "one process computes a model",
    "torchrun": "one process computes a model",
    "continuousBatching": "not supported",
    "useJobTicket": "what cannot be in time is refused at once",
    "useVenv": "install the packages for the server's own Python",
    "maxRetryTimeoutInSec": "workers are started again by the server's own rules",
    "clientTimeoutInMills": "a request's deadline does that",
    "jobQueueSize": "set --max-queue",
    "sequenceMaxIdleMSec": "sequences are not supported",
    "sequenceTimeoutMSec": "sequences are not supported",
    "maxNumSequence": "sequences are not supported",
    "maxSequenceJobQueueSize": "sequences are not supported",
    "stateful": "sequences are not supported",
    "asyncCommunication": "not supported",
    "parallelMode": "one process computes a model",
}
"""Options of `model-config.yaml` that mean nothing here, and why; what is in no list is the handler's own."""


class Extra(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The section `timebound` of `model-config.yaml`: what a handler gets on top."""

    deadline: float | None = None
    """Seconds; without it `responseTimeout`."""
    max_batch: int | None = None
    """Without it `batchSize`."""
    fallback: str | None = None
    """`file.py:function`: its answer to one item is given when time runs out."""
    keep: float | None = None
    cache: str | None = None
    example: str | None = None
    """A file of the archive: a body to warm the model up with."""


class Registered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said about an archive where it is registered; it goes before what is in the archive."""

    file: str
    name: str | None = None
    version: str | None = None
    """As the archive says it; for those who look it up."""
    handler: str | None = None
    batch_size: int | None = None
    response_timeout: float | None = None
    usual_timeout: float = USUAL_TIMEOUT_S


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """One archive, unpacked, and all that is known of it before its handler runs."""

    folder: Path
    name: str
    version: str
    handler: str
    envelope: str | None
    batch_size: int
    deadline_s: float
    extra: Extra
    manifest: dict[str, Any]
    config: dict[str, Any]
    """`model-config.yaml` as the handler sees it."""
    ignored: list[str]


def is_unpacked(folder: Path) -> bool:
    """Whether this folder is a model archive that was not packed."""
    return (folder / FOLDER / FILE).is_file()


def describe(folder: Path, registered: Registered) -> Described:
    """Read and check what an archive says; raises `SetupError` that names the file and the mistake."""
    manifest = _read_manifest(folder)
    model = _section(manifest, "model", FILE)
    label = registered.name or str(model.get("modelName") or folder.name)
    runtime = _text(manifest, "runtime", label) or "python"
    if runtime.lower() not in RUNTIMES:
        raise SetupError(f"{label}: its runtime is {runtime!r}, and only handlers in Python can be served")
    config, ignored = _read_config(folder, _text(model, "configFile", label), label)
    extra = _extra(config, label)
    batch_size = registered.batch_size or extra.max_batch or _whole(config, "batchSize", label) or 1
    timeout_s = registered.response_timeout or _number(config, "responseTimeout", label) or registered.usual_timeout
    if requirements := _text(model, "requirementsFile", label):
        ignored.append(f"{requirements} is not installed; run: pip install -r {folder / requirements}")
    return Described(
        folder=folder,
        name=_checked(label, "the name"),
        version=_checked(_text(model, "modelVersion", label) or "1.0", f"{label}: the version"),
        handler=registered.handler or _text(model, "handler", label) or "",
        envelope=_text(model, "envelope", label),
        batch_size=batch_size,
        deadline_s=extra.deadline or timeout_s,
        extra=extra,
        manifest=manifest,
        config=config,
        ignored=[f"{label}: {each}" for each in ignored],
    )


def inside(folder: Path, name: str, label: str) -> Path:
    """A file of the archive by the name that it gives itself; raises `SetupError` if it is not there."""
    file = folder.joinpath(*checked_name(label, name))
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        raise SetupError(f"{label}: the archive has no file {name!r}")
    return file


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / FOLDER / FILE
    if not file.is_file():
        raise SetupError(f"{folder.name} has no {FOLDER}/{FILE}; make it with torch-model-archiver or model-archiver")
    try:
        found = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise SetupError(f"{FOLDER}/{FILE} of {folder.name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SetupError(f"{FOLDER}/{FILE} of {folder.name} is not a JSON object")
    return found


def _read(file: Path) -> bytes:
    if file.stat().st_size > _MOST_BYTES:
        raise SetupError(f"{file} is over {_MOST_BYTES} bytes; that is no description of a model")
    return file.read_bytes()


def _read_config(folder: Path, name: str | None, label: str) -> tuple[dict[str, Any], list[str]]:
    if name is None:
        return {}, []
    try:
        found = msgspec.yaml.decode(_read(inside(folder, name, label)))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SetupError(f"{label}: {name} is not valid YAML: {' '.join(str(error).split())}") from None
    if found is None:
        return {}, []
    if not isinstance(found, dict):
        raise SetupError(f"{label}: {name} is no list of options; write them as: batchSize: 4")
    return found, [f"{key} in {name} is ignored: {IGNORED[key]}" for key in found if key in IGNORED]


def _extra(config: Mapping[str, Any], label: str) -> Extra:
    try:
        return msgspec.convert(config.get(OURS) or {}, type=Extra)
    except msgspec.ValidationError as error:
        raise SetupError(f"{label}: the section {OURS!r} of its configuration is wrong: {error}") from None


def _section(found: Mapping[str, Any], name: str, file: str) -> dict[str, Any]:
    value = found.get(name)
    if not isinstance(value, dict):
        raise SetupError(f"{file} has no {name!r}; make the archive with torch-model-archiver or model-archiver")
    return value


def _text(found: Mapping[str, Any], name: str, label: str) -> str | None:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise SetupError(f"{label}: {name} is {value!r}; it must be a text")
    return value or None


def _number(found: Mapping[str, Any], name: str, label: str) -> float | None:
    value = found.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf):
        raise SetupError(f"{label}: {name} is {value!r}; it must be a number above zero")
    return value


def _whole(found: Mapping[str, Any], name: str, label: str) -> int | None:
    value = _number(found, name, label)
    if value is not None and value != int(value):
        raise SetupError(f"{label}: {name} is {value!r}; it must be a whole number")
    return None if value is None else int(value)


def _checked(word: str, what: str) -> str:
    if not _NAME.fullmatch(word):
        raise SetupError(f"{what} {word[:100]!r} must be letters, digits, '.', '_' or '-', at most 64 of them")
    return word

"""Which model archives a target stands for: one, a folder of them, or a list of those that are registered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from timebound.errors import SetupError
from timebound.handlers.archive import is_archive
from timebound.handlers.manifest import Registered, describe, is_unpacked
from timebound.handlers.model import HandlerModel, handler_model
from timebound.handlers.unpacked import unpacked

LIST = ".torchserve"
"""The suffix of a file that lists what is registered; `timebound torchserve` writes it."""


class Listed(msgspec.Struct, frozen=True):
    """What is registered from one model store. Of several versions of a model the first answers by default."""

    store: str
    models: list[Registered]


def is_target(target: Path) -> bool:
    """Whether this is served by handlers alone: an archive, packed or not, or a list of archives."""
    if target.is_dir():
        return is_unpacked(target)
    return is_archive(target) or target.suffix == LIST


def archives(target: Path) -> list[Registered]:
    """The archives of a target, by their paths."""
    if target.suffix == LIST and target.is_file():
        listed = read_list(target)
        return [msgspec.structs.replace(each, file=str(Path(listed.store) / each.file)) for each in listed.models]
    if is_target(target):
        return [Registered(file=str(target))]
    if not target.is_dir():
        return []
    return [Registered(file=str(entry)) for entry in sorted(target.iterdir()) if is_model_archive(entry)]


def is_model_archive(path: Path) -> bool:
    """Whether this is one archive, packed or not."""
    return is_unpacked(path) if path.is_dir() else is_archive(path)


def read_list(file: Path) -> Listed:
    """What a list says; raises `SetupError`."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Listed)
    except (OSError, msgspec.DecodeError) as error:
        raise SetupError(f"{file} cannot be read as a list of model archives: {error}") from None


def handler_models(target: Path) -> list[HandlerModel]:
    """The models of a target's archives, unpacked, not loaded; versions beside the first are `<name>@<version>`."""
    found: dict[str, set[str]] = {}
    models = []
    for model in _made(target):
        cls = type(model)
        versions = found.setdefault(cls.name, set())
        if cls.version in versions:
            raise SetupError(f"two archives in {target} are {cls.name!r} version {cls.version}; leave one out")
        if versions:
            cls.name = f"{cls.name}@{cls.version}"
        versions.add(cls.version)
        models.append(model)
    return models


def _made(target: Path) -> Iterator[HandlerModel]:
    for registered in archives(target):
        yield handler_model(describe(unpacked(Path(registered.file)), registered))

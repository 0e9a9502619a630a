"""A model archive as a model: its handler is loaded once per worker, and called with whole batches, one at a time."""

from __future__ import annotations

import mimetypes
import os
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from timebound.backends.base import Backend
from timebound.errors import SetupError, text_of
from timebound.handlers.context import Context, Entry
from timebound.handlers.entry import Room, open_handler
from timebound.handlers.envelope import Asked, pack_asked
from timebound.handlers.manifest import Described, inside
from timebound.handlers.measures import Measures
from timebound.handlers.rows import Row
from timebound.model import Model, check_class

KIND = "handler"
_importing = threading.Lock()
_GPUS = Path("/proc/driver/nvidia/gpus")


class Handler(Backend):
    """Calls `handle(data, context)`. Handlers keep state, and think themselves alone: never from two threads."""

    kind = KIND
    parallel = False

    def __init__(self, described: Described) -> None:
        self.label = described.name
        self.room = Room(described.folder)
        self.measures = Measures(described.name)
        self.context = Context(
            model_name=described.name,
            model_dir=str(described.folder),
            manifest=described.manifest,
            model_yaml_config=described.config,
            batch_size=described.batch_size,
            gpu_id=0 if _has_gpu() else None,
            metrics=self.measures,
        )
        self._entry = self._open(described)

    def _open(self, described: Described) -> Entry:
        if not described.handler:
            raise SetupError(f"{self.label}: the manifest names no handler; make the archive with --handler")
        if described.envelope not in (None, "body"):
            raise SetupError(f"{self.label}: the envelope {described.envelope!r} is not supported; make it without one")
        self.room.enter()
        try:
            entry, initialize = open_handler(self.label, described.handler, described.folder)
            initialize(self.context)
        except SetupError:
            raise
        except BaseException as error:  # it is the user's, and may even exit
            what = " ".join(text_of(error).split())[:500]
            raise SetupError(f"{self.label}: its handler cannot be loaded: {type(error).__name__}: {what}") from error
        return entry

    def __call__(self, batch: Sequence[Row]) -> Any:
        self.room.enter()
        for row in batch:
            row.request.renew()  # it may come a second time, in a smaller batch
        self.context.begin([row.request for row in batch], [row.id for row in batch])
        return self._entry([row.data for row in batch], self.context)


class HandlerModel(Model):
    """A model archive; `handler_model` sets what differs from archive to archive."""

    parallel = False
    described: Described

    def load(self) -> None:
        self.net = Handler(self.described)

    def infer(self, batch: Any) -> Any:
        return self.net(batch)

    @property
    def notes(self) -> list[str]:
        """What of its options is ignored; sentences for people."""
        return self.described.ignored


def handler_model(described: Described, *, version: str | None = None) -> HandlerModel:
    """The model of an archive, not loaded yet. Raises `SetupError`."""
    extra = described.extra
    attributes: dict[str, Any] = {
        "__doc__": str(described.manifest.get("description") or described.manifest["model"].get("description") or ""),
        "name": described.name,
        "version": version or described.version,
        "deadline": described.deadline_s,
        "max_batch": described.batch_size,
        "cache": extra.cache,
        "described": described,
    }
    if extra.keep is not None:
        attributes["keep"] = extra.keep
    if extra.example is not None:
        attributes["example"] = _example(inside(described.folder, extra.example, described.name))
    if extra.fallback is not None:
        attributes["fallback"] = _fallback(described, extra.fallback)
    cls: type[HandlerModel] = type("HandlerModel", (HandlerModel,), attributes)
    check_class(cls)
    return cls()


def _example(file: Path) -> bytes:
    """A request with this file as its body."""
    media = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return pack_asked(Asked([(b"content-type", media.encode())]), file.read_bytes())


def _fallback(described: Described, named: str) -> Any:
    """A method that gives a fallback's answer to one item; its file is imported when the first one is asked for."""
    file, _, function = named.partition(":")
    name = file.removesuffix(".py")
    if not function or not name.isidentifier():
        raise SetupError(f"{described.name}: fallback is {named!r}; write it as file.py:function")
    inside(described.folder, f"{name}.py", described.name)
    room = Room(described.folder)
    found: list[Any] = []

    def fallback(self: Model, item: Any) -> Any:
        if not found:
            with _importing:  # an understudy answers in several threads, and archives may have files of one name
                room.enter()
                found.append(getattr(import_module(name), function))
        return found[0](Row(item).data)

    return fallback


def _has_gpu() -> bool:
    try:
        return any(_GPUS.iterdir()) and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
    except OSError:
        return False

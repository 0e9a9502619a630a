"""Finds a handler's function in its archive, and keeps archives apart that share one process.

Handlers were written for a process of their own: they open files by bare names, and every second one is called
`handler.py`. So each archive has a `Room`: its folder to look in, the modules that came from there, and the working
directory. Whoever calls a handler enters its room first.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from timebound.errors import SetupError
from timebound.handlers.context import Context, Entry

STOCK = "ts.torch_handler"
_WHERE_STOCK = "install it with: pip install torchserve torch (image and text handlers need torchvision and captum too)"


class Room:
    """One archive's place in this process."""

    _current: Room | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._modules: dict[str, ModuleType] = {}

    def enter(self) -> None:
        """Be in this archive from now on: its modules and files are found, those of others are not."""
        if Room._current is self:
            return
        if Room._current is not None:
            Room._current._leave()
        Room._current = self
        sys.path.insert(0, self._folder)
        sys.modules.update(self._modules)
        os.chdir(self._folder)

    def _leave(self) -> None:
        inside = self._folder + os.sep
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(inside):
                self._modules[name] = sys.modules.pop(name)
        if self._folder in sys.path:
            sys.path.remove(self._folder)
        importlib.invalidate_caches()


def open_handler(label: str, handler: str, folder: Path) -> tuple[Entry, Callable[[Context], Any]]:
    """A handler's function and what initializes it; enter its room before. Raises `SetupError`."""
    module, function = _module(label, handler, folder)
    own = getattr(module, function or "handle", None)
    if callable(own) and not inspect.isclass(own):
        entry: Entry = own
        return entry, lambda context: entry(None, context)
    if function is not None:
        raise SetupError(f"{label}: its handler is {handler!r}, and {module.__name__} has no such function")
    return _of_class(label, module)


def _module(label: str, handler: str, folder: Path) -> tuple[ModuleType, str | None]:
    file, _, function = handler.partition(":")
    name = file.removesuffix(".py").rsplit("/", 1)[-1]
    if not name.isidentifier():
        raise SetupError(f"{label}: its handler is {handler!r}; it must be a file of the archive, or file:function")
    is_own = (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
    try:
        return importlib.import_module(name if is_own else f"{STOCK}.{name}"), function or None
    except ModuleNotFoundError as error:
        if is_own:
            cure = f"install {error.name} for {sys.executable}"
            raise SetupError(f"{label}: importing its handler failed: {error}; {cure}") from error
        if error.name == f"{STOCK}.{name}":
            known = f"the archive has no {name}.py, and TorchServe no handler of that name"
            raise SetupError(f"{label}: its handler is {handler!r}, but {known}") from error
        missing = f"the archive has no {name}.py, and for TorchServe's handler of that name {error.name} is missing"
        raise SetupError(f"{label}: its handler is {handler!r}: {missing}; {_WHERE_STOCK}") from error


def _of_class(label: str, module: ModuleType) -> tuple[Entry, Callable[[Context], Any]]:
    classes = [
        value
        for _, value in inspect.getmembers(module, inspect.isclass)
        if value.__module__ == module.__name__ and not inspect.isabstract(value)
    ]
    able = [cls for cls in classes if callable(getattr(cls, "handle", None))]
    if len(classes) > 1 and len(able) != 1:
        names = ", ".join(cls.__name__ for cls in classes)
        raise SetupError(f"{label}: its handler has several classes ({names}); leave one, or name file:function")
    if not able:
        raise SetupError(f"{label}: its handler has neither a function handle(data, context) nor a class with it")
    service: Any = able[0]()
    return service.handle, getattr(service, "initialize", lambda context: None)

"""Imports the user's Python files: each as a module of its own, which may import what lies beside it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from timebound.errors import SetupError, text_of

_OURS = str(Path(__file__).parent)
_app_folders: set[str] = set()
_importing: list[Path] = []
"""The files that are being imported now."""


class _AsWritten(SourceFileLoader):
    """Never from `__pycache__`: a file that changed within a second and kept its length is still the old one there."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def imported_now() -> Path | None:
    """The user's file that is being imported, if one is: what it does meanwhile is done in every worker."""
    return _importing[-1] if _importing else None


def import_file(file: Path) -> ModuleType:
    """A Python file as a module, which may import the files beside it, or the rest of its package if it is part of one.

    Raises `SetupError` if it cannot be had.
    """
    file = file.resolve()
    _importing.append(file)
    try:
        return _module_of_a_package(file) if _is_in_package(file) else _module_of_its_own(file)
    except SetupError:
        raise
    except ModuleNotFoundError as error:
        cure = f"install it for {sys.executable}, or put it beside {file.name}"
        raise SetupError(f"importing {file} failed: {describe(error)}; {cure}") from error
    except Exception as error:
        raise SetupError(f"importing {file} failed: {describe(error)}") from error
    finally:
        _importing.pop()


def _is_in_package(file: Path) -> bool:
    return (file.parent / "__init__.py").is_file()


def _module_of_its_own(file: Path) -> ModuleType:
    _look_beside(file.parent)
    # A name of its own, so that two apps called app.py in one folder of models do not meet in sys.modules.
    module_name = f"timebound_app_{abs(hash(str(file))):x}"
    loader = _AsWritten(module_name, str(file))
    spec = importlib.util.spec_from_file_location(module_name, file, loader=loader)
    if spec is None or spec.loader is None:
        raise SetupError(f"{file} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def _module_of_a_package(file: Path) -> ModuleType:
    """By its full name, for it may say `from . import labels`."""
    names, folder = [] if file.name == "__init__.py" else [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    _look_beside(folder)
    module = importlib.import_module(".".join(names))
    if module.__file__ is None or Path(module.__file__).resolve() != file:
        raise SetupError(f"{file} cannot be imported: another package named {names[0]!r} was found first")
    return module


def _look_beside(folder: Path) -> None:
    """Let an app import the files beside it, and not those beside another app that was loaded before."""
    for other in [place for place in sys.path if place in _app_folders]:
        sys.path.remove(other)
    siblings = {file.stem for file in folder.glob("*.py")} | {file.parent.name for file in folder.glob("*/__init__.py")}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in siblings and file and any(file.startswith(other) for other in _app_folders):
            del sys.modules[name]
    _app_folders.add(str(folder))
    sys.path.insert(0, str(folder))


def describe(error: BaseException) -> str:
    """An exception in one line, with the user's own line of code it came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((_OURS, "<frozen"))]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    kind, text = type(error).__name__, " ".join(text_of(error).split())
    return f"{kind}: {text}{where}" if text not in ("", kind) else f"{kind}{where}"

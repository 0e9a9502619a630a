"""What `timebound serve` was pointed at: a Python file, a model file or a folder, turned into models."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from timebound.backends.base import Place, opened_in
from timebound.errors import SetupError
from timebound.model import Model, check_class, name_of

_FILES = {".py": "Python file", ".onnx": "ONNX file"}


def check_target(target: Path) -> None:
    """Raise `SetupError` if `target` can be seen to be wrong without loading it."""
    if not target.exists():
        raise SetupError(f"{target} does not exist; give a .py file, an .onnx file or a folder of models")
    if target.is_dir():
        if not list(_folder_files(target)):
            raise SetupError(
                f"no model in {target}; put files at <model>/<version>/model.onnx (or app.py), or <model>.onnx, in it"
            )
    elif target.suffix not in _FILES:
        raise SetupError(f"{target} is neither a .py nor an .onnx file, and those are what can be served")


def load_models(target: Path, *, threads: int) -> list[Model]:
    """All models of `target`, loaded; names are unique and classes checked."""
    check_target(target)
    if target.is_dir():
        models = [m for file, name, version in _folder_files(target) for m in _load(file, name, version, threads)]
    else:
        models = _load(target, target.stem, "1", threads)
    seen: set[str] = set()
    for model in models:
        name = name_of(type(model))
        if name in seen:
            raise SetupError(f"two models are called {name!r} in {target}; give one of them another `name`")
        seen.add(name)
    return models


def _folder_files(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """(file, model, version) of each model: the newest version of <model>/<version>/, and <model>.onnx."""
    for entry in sorted(folder.iterdir()):
        if entry.is_file() and entry.suffix == ".onnx":
            yield entry, entry.stem, "1"
        elif entry.is_dir():
            versions = sorted((int(v.name) for v in entry.iterdir() if v.is_dir() and v.name.isdecimal()), reverse=True)
            for version in versions[:1]:
                place = entry / str(version)
                files = sorted([*place.glob("*.onnx"), *place.glob("app.py")])
                if len(files) != 1:
                    raise SetupError(f"{place} must hold exactly one .onnx file or an app.py, and holds {len(files)}")
                yield files[0], entry.name, str(version)


def _load(file: Path, name: str, version: str, threads: int) -> list[Model]:
    place = Place(file.resolve().parent, threads)
    with opened_in(place):
        if file.suffix == ".onnx":
            # Imported here: a Python-only model needs neither numpy nor onnxruntime.
            from timebound.backends.onnx_model import onnx_model

            return [onnx_model(file.resolve(), name=name, version=version)]
        return [_load_class(cls) for cls in _model_classes(file)]


def _load_class(cls: type[Model]) -> Model:
    check_class(cls)
    model = cls()
    try:
        model.load()
    except SetupError:
        raise
    except Exception as error:
        raise SetupError(f"{cls.__name__}.load() failed: {describe(error)}") from error
    if cls.infer is Model.infer and model.net is None:
        raise SetupError(
            f"class {cls.__name__} has no infer: define `def infer(self, batch)`, or set self.net in load()"
        )
    return model


def _model_classes(file: Path) -> list[type[Model]]:
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # an app may import the files beside it
    # A name of its own, so that two apps called app.py in one folder of models do not meet in sys.modules.
    module_name = f"timebound_app_{abs(hash(str(file.resolve()))):x}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise SetupError(f"{file} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except SetupError:
        raise
    except Exception as error:
        raise SetupError(f"importing {file} failed: {describe(error)}") from error
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Model)
        and value.__module__ == module_name
        and not value.__name__.startswith("_")
    ]
    if not found:
        raise SetupError(f"{file} defines no model; add a class derived from timebound.Model")
    return found


def describe(error: BaseException) -> str:
    """An exception in one line, with the user's own line of code it came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/timebound/" not in f.filename]
    frames = [f for f in frames if "importlib" not in f.filename]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"

"""What `timebound serve` was pointed at: a Python file, a model file or a folder, turned into models."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from timebound.backends.base import Place, opened_in
from timebound.errors import SetupError, text_of
from timebound.model import Model, check_class, name_of

Versions: TypeAlias = Mapping[str, Sequence[str]]
"""By model, the versions to load; the first is the main one."""

_OURS = str(Path(__file__).parent)
_APP = "app.py"
_MODEL_FILES = (".onnx", ".pt2", ".pt")
"""What is served by its signature; `tb.onnx` and `tb.torch` open them."""


def check_target(target: Path) -> None:
    """Raise `SetupError` if `target` can be seen to be wrong without loading it."""
    if not target.exists():
        raise SetupError(f"{target} does not exist; give a .py, .onnx, .pt2 or .pt file, or a folder")
    if target.is_dir():
        if not list(_files(target)):
            raise SetupError(
                f"no model in {target}; put an app.py in it, or files at <model>/<version>/model.onnx or <model>.onnx"
            )
    elif target.suffix not in (".py", *_MODEL_FILES):
        raise SetupError(f"{target} is no .py, .onnx, .pt2 or .pt file, and those are what can be served")


def load_models(
    target: Path,
    *,
    threads: int,
    slots: int = 1,
    engines: Mapping[str, str] | None = None,
    versions: Versions | None = None,
) -> list[Model]:
    """All models of `target`, loaded, for `slots` batches at once; names are unique and classes checked.

    `engines` says by model what ONNX files run on, and under "" for all others.

    Of a model with several `versions` the first has its name, each other one `<name>@<version>`.
    """
    check_target(target)
    place = Place(target, threads, slots)
    models = [
        model
        for file, name, version in _files(target, versions)
        for model in _load(file, name, version, place, engines or {}, is_folder=_is_folder_of_models(target))
    ]
    _name_versions(models, versions or {})
    names = [name_of(type(model)) for model in models]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SetupError(f"two models in {target} have the name {twice[0]!r}; give one of them another")
    _check_paths(models, target)
    return models


def _check_paths(models: Sequence[Model], target: Path) -> None:
    """Raise `SetupError` if two models answer at one path, be it their own or one that every model has."""
    owners: dict[str, str] = {}
    for model in models:
        name, version = name_of(type(model)), str(type(model).version)
        always = (f"/predictions/{name}", f"/predictions/{name.partition('@')[0]}/{version}")
        for path in {*always, type(model).path or always[0]}:
            other = owners.setdefault(path, name)
            if other != name:
                both = f"the models {other!r} and {name!r} in {target} would both answer at {path!r}"
                raise SetupError(f"{both}; give one of them another path")


def understudies(target: Path, versions: Versions | None = None) -> list[Model]:
    """The models of `target` that are Python classes, made but not loaded: for what needs no weights."""
    check_target(target)
    made: list[Model] = []
    for file, name, version in _files(target, versions):
        if file.suffix == ".py":
            classes = _model_classes(file)
            if _is_folder_of_models(target):
                _name_by_folder(classes, name, version)
            made += [cls() for cls in classes]
    _name_versions(made, versions or {})
    return made


def _name_versions(models: list[Model], versions: Versions) -> None:
    for model in models:
        cls: type[Model] = type(model)
        if cls.folder is not None and cls.folder in versions and cls.version != versions[cls.folder][0]:
            cls.name = f"{name_of(cls)}@{cls.version}"
            cls.path = None


def _files(target: Path, versions: Versions | None = None) -> Iterator[tuple[Path, str, str]]:
    if _is_folder_of_models(target):
        return _folder_files(target, versions or {})
    file = target / _APP if target.is_dir() else target
    return iter([(file, file.stem, "1")])


def _is_folder_of_models(target: Path) -> bool:
    """Whether models lie in folders of their own; a folder with an app.py in it is that one app."""
    return target.is_dir() and not (target / _APP).is_file()


def _folder_files(folder: Path, wanted: Versions) -> Iterator[tuple[Path, str, str]]:
    """(file, model, version) of each model: <model>.onnx and the like, and of <model>/<version>/ the versions that are
    wanted, or the newest."""
    for entry in sorted(folder.iterdir()):
        if entry.is_file() and entry.suffix in _MODEL_FILES:
            yield entry, entry.stem, "1"
        elif entry.is_dir():
            places = {str(int(v.name)): v for v in entry.iterdir() if v.is_dir() and v.name.isdecimal()}
            for version in wanted.get(entry.name) or sorted(places, key=int)[-1:]:
                if version not in places:
                    raise SetupError(f"{entry} has no version {version!r} any more")
                place = places[version]
                # An app may open model files that lie beside it; without one, the file is the model.
                files = [*place.glob(_APP)] or [f for f in place.iterdir() if f.suffix in _MODEL_FILES]
                if len(files) != 1:
                    raise SetupError(f"{place} must hold an app.py or exactly one model file, and holds {len(files)}")
                yield files[0], entry.name, str(int(place.name))


def _load(
    file: Path, name: str, version: str, like: Place, engines: Mapping[str, str], *, is_folder: bool
) -> list[Model]:
    def place(model: str, own: str | None) -> Place:
        return Place(file.resolve().parent, like.threads, like.slots, engines.get(model) or engines.get("") or own)

    if file.suffix in _MODEL_FILES:
        with opened_in(place(name, None)) as here:
            model = _load_file(file.resolve(), name, version)
        type(model).folder = name if is_folder else None
        model.opened = here.opened
        return [model]
    with opened_in(place("", None)) as outside:
        classes = _model_classes(file)
    if is_folder:
        _name_by_folder(classes, name, version)
    models = []
    for cls in classes:
        with opened_in(place(name_of(cls), cls.engine)) as here:
            model = _load_class(cls)
        model.opened = [*outside.opened, *here.opened]
        models.append(model)
    return models


def _load_file(file: Path, name: str, version: str) -> Model:
    # Imported here: a Python-only model needs neither numpy nor onnxruntime, an ONNX file no torch.
    from timebound.backends.file_model import file_model

    if file.suffix == ".onnx":
        from timebound.backends.onnx import onnx

        return file_model(onnx(file), name=name, version=version)
    from timebound.backends.torch import torch_file

    return file_model(torch_file(file), name=name, version=version)


def _name_by_folder(classes: list[type[Model]], name: str, version: str) -> None:
    """In a folder of models, the folders say version and name; a class may still bring a name of its own."""
    for cls in classes:
        cls.version = version
        cls.folder = name
        if not cls.name and len(classes) == 1:
            cls.name = name


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


_app_folders: set[str] = set()


def import_file(file: Path) -> ModuleType:
    """A Python file as a module, which may import the files beside it; raises `SetupError` if it cannot be had."""
    _look_beside(file.resolve().parent)
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
    except ModuleNotFoundError as error:
        cure = f"install it for {sys.executable}, or put it beside {file.name}"
        raise SetupError(f"importing {file} failed: {describe(error)}; {cure}") from error
    except Exception as error:
        raise SetupError(f"importing {file} failed: {describe(error)}") from error
    return module


def _model_classes(file: Path) -> list[type[Model]]:
    module = import_file(file)
    found = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Model)
        and value.__module__ == module.__name__
        and name == value.__name__  # an alias is no second model
        and not name.startswith("_")
    ]
    if not found:
        raise SetupError(f"{file} defines no model; add a class derived from timebound.Model")
    return found


def sentence(error: BaseException) -> str:
    """What to tell the operator about an error while loading."""
    return str(error) if isinstance(error, SetupError) else f"the worker failed: {describe(error)}"


def describe(error: BaseException) -> str:
    """An exception in one line, with the user's own line of code it came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((_OURS, "<frozen"))]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    kind, text = type(error).__name__, " ".join(text_of(error).split())
    return f"{kind}: {text}{where}" if text not in ("", kind) else f"{kind}{where}"

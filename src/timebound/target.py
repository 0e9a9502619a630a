"""What `timebound serve` was pointed at: a Python file, a model file or a folder, turned into models."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from timebound.app_settings import check_known, settings_of
from timebound.backends.base import Place, current_place, opened_in
from timebound.errors import SetupError
from timebound.function import function_model, is_function
from timebound.handlers.store import archives, handler_models
from timebound.handlers.store import is_target as is_archives
from timebound.importer import describe, import_file
from timebound.model import Model, check_class, name_of
from timebound.recipes import refusal
from timebound.work_folder import full_path

Versions: TypeAlias = Mapping[str, Sequence[str]]
"""By model, the versions to load; the first is the main one."""

_APP = "app.py"
_NAMED = re.compile(r"(?P<file>.+\.py):(?P<name>[^:/]+)")
_DOTTED = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[^:/]+)")
_MODEL_FILES = (".onnx", ".pt2", ".pt")
"""What is served by its signature; `tb.onnx` and `tb.torch` open them."""


def parted(target: Path) -> tuple[Path, str | None]:
    """The file or folder of a target, and the name in it that is to be served: "app.py:Mood", "package.module:Mood"."""
    text = str(target)
    if (found := _NAMED.fullmatch(text)) and not target.exists():
        return Path(found["file"]), found["name"]
    if (found := _DOTTED.fullmatch(target.name)) and not target.exists():
        return _file_of(found["module"], target.parent), found["name"]
    return target, None


def together(targets: Sequence[Path]) -> Path:
    """One target that stands for all of these: their paths, one a line."""
    return targets[0] if len(targets) == 1 else Path("\n".join(map(str, targets)))


def each_of(target: Path) -> list[Path]:
    """What `together` was given."""
    return [Path(line) for line in str(target).split("\n")]


def shown(target: Path) -> str:
    """A target as people are told of it."""
    return ", ".join(map(str, each_of(target)))


def resolved(target: Path) -> Path:
    """The target by its full path, so that it means the same in another folder; a module by its file.

    Links stay in it: one that is turned to another folder is followed at the next reload.
    """
    return together([_resolved(each) for each in each_of(target)])


def _resolved(target: Path) -> Path:
    path, name = parted(target)
    return full_path(path) if name is None else Path(f"{full_path(path)}:{name}")


def home_of(target: Path) -> Path | None:
    """The folder that a target is in, or is: its own `.env` and timebound.toml lie there. None of several targets."""
    path, _ = parted(target)
    return path if path.is_dir() else path.parent if path.is_file() else None


def _file_of(module: str, folder: Path) -> Path:
    """A module's file, found without importing anything: here, or wherever Python looks."""
    inner = Path(*module.split("."))
    for place in (folder, *(Path(entry) for entry in sys.path if entry)):
        for file in (place / inner.with_name(inner.name + ".py"), place / inner / "__init__.py"):
            if file.is_file():
                return file
    raise SetupError(f"there is no module {module} in {folder.resolve()} or among the installed packages")


def check_target(target: Path) -> None:
    """Raise `SetupError` if `target` can be seen to be wrong without loading it."""
    several = each_of(target)
    for each in several:
        _check_one(each)
        path, _ = parted(each)
        if len(several) > 1 and (is_archives(path) or _is_folder_of_models(path)):
            raise SetupError(f"{path} is served alone: give one folder of models, or files and apps")
        if several.count(each) > 1:
            raise SetupError(f"{each} is given twice")


def _check_one(target: Path) -> None:
    path, _ = parted(target)
    if not path.exists():
        raise SetupError(f"{path} does not exist; give a .py, .onnx, .pt2, .pt or .mar file, or a folder")
    if is_archives(path):
        return
    if why := refusal(path):
        raise why
    if path.is_dir():
        if not list(_files(path)) and not archives(path):
            if why := next(filter(None, map(refusal, sorted(path.iterdir()))), None):
                raise why
            raise SetupError(
                f"no model in {path}; put an app.py in it, or files at <model>/<version>/model.onnx or <model>.onnx"
            )
    elif path.suffix not in (".py", *_MODEL_FILES):
        raise SetupError(
            f"cannot serve {path}: load it in an app.py, or give a .py, .onnx, .pt2, .pt or .mar file or a folder"
        )


def load_models(
    target: Path,
    *,
    threads: int,
    slots: int = 1,
    engines: Mapping[str, str] | None = None,
    modes: Mapping[str, str] | None = None,
    versions: Versions | None = None,
    device: str = "",
    app: Mapping[str, Any] | None = None,
    max_batch: int | None = None,
) -> list[Model]:
    """All models of `target`, loaded, for `slots` batches at once; names are unique and classes checked.

    `engines` says by model what ONNX files run on, and under "" for all others; `modes` likewise how networks of torch
    compute; `device` what networks run on, if not
    on what they were opened for. `app` are the app's own settings. No model has batches of more than `max_batch`.

    Of a model with several `versions` the first has its name, each other one `<name>@<version>`.
    """
    check_target(target)
    models: list[Model] = []
    for each in each_of(target):
        path, only = parted(each)
        place, is_folder = Place(path, threads, slots, device=device, app=app or {}), _is_folder_of_models(path)
        own = [
            model
            for file, name, version in _files(path, versions)
            for model in _load(
                file, name, version, place, engines=engines or {}, modes=modes or {}, only=only, is_folder=is_folder
            )
        ]
        _name_versions(own, versions or {})
        models += own + _load_archives(path, place)
    names = [name_of(type(model)) for model in models]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SetupError(f"two models in {shown(target)} have the name {twice[0]!r}; give one of them another")
    _check_paths(models, target)
    check_known([type(model).Settings for model in models], app or {})
    for model in models:
        cls = type(model)
        cls.max_batch = min(cls.max_batch, max_batch or cls.max_batch)
    return models


def _load_archives(target: Path, place: Place) -> list[Model]:
    models: list[Model] = []
    for model in handler_models(target):
        with opened_in(place):
            model.load()
        models.append(model)
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
                both = f"the models {other!r} and {name!r} in {shown(target)} would both answer at {path!r}"
                raise SetupError(f"{both}; give one of them another path")


def understudies(target: Path, versions: Versions | None = None, app: Mapping[str, Any] | None = None) -> list[Model]:
    """The models of `target` that are Python code, made but not loaded: for what needs no weights."""
    check_target(target)
    return [made for each in each_of(target) for made in _understudies(each, versions or {}, app or {})]


def _understudies(target: Path, versions: Versions, app: Mapping[str, Any]) -> list[Model]:
    made: list[Model] = []
    path, only = parted(target)
    for file, name, version in _files(path, versions):
        if file.suffix == ".py":
            classes = _model_classes(file, only)
            if _is_folder_of_models(path):
                _name_by_folder(classes, name, version)
            made += [_equipped(cls, app) for cls in classes]

    _name_versions(made, versions)
    return [*made, *handler_models(path)]


def _name_versions(models: list[Model], versions: Versions) -> None:
    for model in models:
        cls: type[Model] = type(model)
        if cls.folder is not None and cls.folder in versions and cls.version != versions[cls.folder][0]:
            cls.name = f"{name_of(cls)}@{cls.version}"
            cls.path = None


def _files(target: Path, versions: Versions | None = None) -> Iterator[tuple[Path, str, str]]:
    if is_archives(target):
        return iter(())
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
    file: Path,
    name: str,
    version: str,
    like: Place,
    *,
    engines: Mapping[str, str],
    modes: Mapping[str, str],
    only: str | None,
    is_folder: bool,
) -> list[Model]:
    def place(model: str, own: str | None) -> Place:
        engine = engines.get(model) or engines.get("") or own
        mode = modes.get(model) or modes.get("") or ""
        return Place(file.resolve().parent, like.threads, like.slots, engine, like.device, mode, app=like.app)

    if file.suffix in _MODEL_FILES:
        with opened_in(place(name, None)) as here:
            model = _load_file(file.resolve(), name, version)
        type(model).folder = name if is_folder else None
        model.opened, model.on_device = here.opened, here.on_device
        return [model]
    with opened_in(place("", None)) as outside:
        classes = _model_classes(file, only)
    if is_folder:
        _name_by_folder(classes, name, version)
    models = []
    for cls in classes:
        with opened_in(place(name_of(cls), cls.engine)) as here:
            model = _load_class(cls)
        model.opened, model.on_device = [*outside.opened, *here.opened], here.on_device
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


def load_class(cls: type[Model], *, app: Mapping[str, Any] | None = None) -> Model:
    """A model of a class that is there already, loaded beside the file that it is defined in."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    folder = Path(file).resolve().parent if file else Path.cwd()
    with opened_in(Place(folder, app=app or {})) as here:
        model = _load_class(cls)
    model.opened, model.on_device = here.opened, here.on_device
    return model


def _load_class(cls: type[Model]) -> Model:
    check_class(cls)
    model = _equipped(cls, current_place().app)
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


def _equipped(cls: type[Model], app: Mapping[str, Any]) -> Model:
    model = cls()
    model.settings = settings_of(cls.Settings, app, where=f"class {cls.__name__}")
    try:
        model.equip()
    except SetupError:
        raise
    except Exception as error:
        raise SetupError(f"{cls.__name__}.equip() failed: {describe(error)}") from error
    return model


_LIKELY = ("predict", "infer", "inference", "classify", "answer")
"""What people call a function that is to be served."""


def _model_classes(file: Path, only: str | None = None) -> list[type[Model]]:
    """The classes that a file defines, or the one that was asked for; of a file without any, its function."""
    module = import_file(file)
    if only is not None:
        return [_named(vars(module), only, file)]
    own = {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
        and name == getattr(value, "__name__", None)  # an alias is no second model
        and not name.startswith("_")
    }
    if found := [value for value in own.values() if isinstance(value, type) and issubclass(value, Model)]:
        return found
    functions = [name for name, value in own.items() if is_function(value)]
    if len(functions) == 1:
        return [_named(own, functions[0], file)]
    if functions:
        many = f"{file} defines no model class, and {len(functions)} functions"
        likely = next((name for name in functions if name in _LIKELY), functions[0])
        raise SetupError(f"{many}; say which one to serve: {file}:{likely}")
    raise SetupError(f"{file} defines no model; add a class derived from timebound.Model, or a function with types")


def _named(values: Mapping[str, Any], name: str, file: Path) -> type[Model]:
    """The model of this name: a class, or a function made into one."""
    value = values.get(name)
    if isinstance(value, type) and issubclass(value, Model):
        return value
    if is_function(value):
        return function_model(value, label=f"{file.name}:{name}")
    if value is not None:
        raise SetupError(
            f"{file}: {name} is a {type(value).__name__}; give a class derived from timebound.Model, or a function"
        )
    there = [key for key, value in values.items() if is_function(value) or _is_model(value)]
    raise SetupError(f"{file} has no {name}; it has {', '.join(there) or 'no class or function'}")


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Model) and value is not Model


def sentence(error: BaseException) -> str:
    """What to tell the operator about an error while loading."""
    return str(error) if isinstance(error, SetupError) else f"the worker failed: {describe(error)}"

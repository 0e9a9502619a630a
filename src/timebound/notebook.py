"""Models typed into a notebook's cell or at Python's prompt, handed to workers by value.

Workers import a model from a file, and these have none. cloudpickle writes down the class with all that it uses of the
notebook: functions, imports, variables as they are at this moment. What it cannot write is a `msgspec.Struct`, which is
made of its fields anew.
"""

from __future__ import annotations

import base64
import io
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from inspect import get_annotations
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec

from timebound.errors import SetupError

_FILE = '''\
"""{name} of a notebook, for the workers of a server; it goes when that stops."""

import base64
import pickle

{name} = pickle.loads(base64.b64decode("""
{pickled}"""))
'''
_LIMITS = (
    "gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz",
    "title", "description", "examples", "extra_json_schema", "extra",
)  # fmt: skip
"""Of `msgspec.Meta`."""
_METHODS = (FunctionType, classmethod, staticmethod, property)
_STRUCT = type(msgspec.Struct)


def is_possible() -> bool:
    """Whether there is cloudpickle."""
    return find_spec("cloudpickle") is not None


def handed_over(model: Any, name: str, until: ExitStack) -> Path:
    """What `timebound serve` takes for a model without a file: one that is there until `until` is closed.

    It lies where the notebook runs, hidden, so that model files and modules beside that are found; raises `SetupError`.
    """
    text = _FILE.format(name=name, pickled=base64.encodebytes(_pickled(model, name)).decode())
    place = Path.cwd()
    if not os.access(place, os.W_OK):
        place = Path(until.enter_context(tempfile.TemporaryDirectory(prefix="timebound-")))
    descriptor, path = tempfile.mkstemp(prefix=f".timebound-{name}-", suffix=".py", dir=place)
    until.callback(Path(path).unlink, missing_ok=True)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    return Path(f"{path}:{name}")


def _pickled(model: Any, name: str) -> bytes:
    import cloudpickle  # optional: the extra `notebook`

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, msgspec.Meta):
                return _meta, ({limit: value for limit in _LIMITS if (value := getattr(obj, limit)) is not None},)
            if isinstance(obj, _STRUCT) and obj.__module__ == "__main__":
                return _reduced(obj)
            return super().reducer_override(obj)

    written = io.BytesIO()
    try:
        Pickler(written).dump(model)
    except Exception as error:
        raise SetupError(
            f"{name} uses something that cannot be handed to workers: {error}; open it in load(), or begin the cell "
            "with `%%writefile app.py` and give 'app.py'"
        ) from error
    return written.getvalue()


def _meta(limits: Mapping[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**limits)


def _reduced(struct: Any) -> tuple[Any, ...]:
    """How pickle makes a Struct again: from its fields, then its methods, which may speak of it."""
    own = get_annotations(struct)
    fields = [
        (each.name, each.type, _default(each), each.encode_name, each.name not in struct.__match_args__)
        for each in msgspec.structs.fields(struct)
        if each.name in own
    ]
    config = struct.__struct_config__
    settings = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
    methods = {name: value for name, value in vars(struct).items() if isinstance(value, _METHODS)}
    return _struct, (struct.__name__, struct.__bases__, fields, settings), methods, None, None, _set_methods


def _default(field: Any) -> tuple[str, Any]:
    if field.default_factory is not msgspec.NODEFAULT:
        return "default_factory", field.default_factory
    return "default", field.default


def _struct(name: str, bases: tuple[type, ...], fields: list[Any], settings: dict[str, Any]) -> type:
    made = [
        (own, kind, msgspec.field(name=encoded, **{word: value})) for own, kind, (word, value), encoded, _ in fields
    ]
    is_kw_only = bool(fields) and all(is_kw for *_, is_kw in fields)
    return msgspec.defstruct(name, made, bases=bases, module="__main__", kw_only=is_kw_only, **settings)


def _set_methods(struct: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
    for name, method in methods.items():
        setattr(struct, name, method)

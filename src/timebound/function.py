"""A model made of a plain function: its parameters are the fields of a request, what it returns is the answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, TypeGuard, get_type_hints

import msgspec

from timebound.answer_type import returned_type
from timebound.errors import SetupError
from timebound.model import Model

_CURE = "or write a class derived from timebound.Model"
_NO_PLAIN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def function_model(function: Callable[..., Any], *, label: str) -> type[Model]:
    """The model class that serves a function; `label` names it in sentences. Raises `SetupError` if it cannot."""
    if any(kind(function) for kind in _NO_PLAIN):
        raise SetupError(f"{label} is async or yields; define it with a plain `def` that returns the answer, {_CURE}")
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:
        raise SetupError(f"{label}: its annotations cannot be read: {type(error).__name__}: {error}") from error
    fields = [_field(parameter, hints, label) for parameter in inspect.signature(function).parameters.values()]
    takes_bytes = [field for field in fields if field[1] is bytes]
    if takes_bytes and len(fields) > 1:
        raise SetupError(
            f"{label} takes bytes and more; a function of one `bytes` parameter gets the raw body, {_CURE}"
        )
    attributes = {
        "name": function.__name__,
        "function": staticmethod(function),
        "Answer": returned_type(hints.get("return")),
        "Request": None if takes_bytes else _request(function.__name__, fields, label),
        "__doc__": function.__doc__,
        "__module__": function.__module__,
    }
    return type(function.__name__, (FunctionModel,), attributes)


def is_function(value: Any) -> TypeGuard[Callable[..., Any]]:
    """Whether it is a function, or a function behind decorators that keep its signature, such as `lru_cache`."""
    if inspect.isfunction(value):
        return True
    try:
        return callable(value) and not isinstance(value, type) and inspect.isfunction(inspect.unwrap(value))
    except ValueError:  # decorators in a circle
        return False


class FunctionModel(Model):
    """Calls the function once per request; `function_model` sets which."""

    function: Callable[..., Any]

    def infer(self, batch: list[Any]) -> list[Any]:
        return [self._call(request) for request in batch]

    def _call(self, request: Any) -> Any:
        try:
            if isinstance(request, bytes):
                return self.function(request)
            return self.function(**{name: getattr(request, name) for name in request.__struct_fields__})
        except Exception as error:  # this one's own; the others of the batch are answered
            return error

    def finish(self, output: Any, request: Any) -> Any:
        if isinstance(output, Exception):
            raise output
        return output


def _field(
    parameter: inspect.Parameter, hints: Mapping[str, Any], label: str
) -> tuple[str, Any] | tuple[str, Any, Any]:
    name = parameter.name
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise SetupError(f"{label}: {parameter} cannot be a field of a request; name each parameter, {_CURE}")
    if name not in hints:
        raise SetupError(f"{label}: parameter {name!r} has no type; write for example `{name}: str`, {_CURE}")
    if parameter.default is parameter.empty:
        return name, hints[name]
    default = parameter.default
    if isinstance(default, list | dict | set):  # a fresh one for each request, with all that is in it
        return name, hints[name], msgspec.field(default_factory=partial(deepcopy, default))
    return name, hints[name], default


def _request(name: str, fields: list[Any], label: str) -> type:
    try:
        made = msgspec.defstruct("Request", fields, kw_only=True)
        msgspec.json.Decoder(made)
        msgspec.json.schema(made)
    except (TypeError, NameError) as error:
        raise SetupError(f"{label}: JSON cannot fill these parameters: {error}; use plain types, {_CURE}") from error
    return made

"""What the methods of a model class take, and the names that they use."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import getattr_static, isasyncgenfunction, iscoroutinefunction, isfunction, signature
from types import CodeType
from typing import Any

from timebound.errors import SetupError

_TAKES: dict[str, tuple[str, ...]] = {
    "equip": (),
    "load": (),
    "prepare": ("request",),
    "infer": ("batch",),
    "finish": ("output", "request"),
    "fallback": ("request",),
    "size": ("request",),
    "redact": ("request",),
    "fetch": ("request",),
}
"""By method, what it is called with besides `self`."""


def check_methods(cls: type, where: str) -> None:
    """Raise `SetupError` for a method that takes other arguments, or that would have to be awaited."""
    for name, arguments in _TAKES.items():
        method = getattr_static(cls, name, None)
        if not isfunction(method):  # not defined, or wrapped in a way that only a call can judge
            continue
        header = f"def {name}({', '.join(['self', *arguments])})"
        if name != "fetch" and (iscoroutinefunction(method) or isasyncgenfunction(method)):
            cure = f"write `{header}`, and what waits for the network in `async def fetch(self, request)`"
            raise SetupError(f"{where}: {name} is async, and nothing awaits it; {cure}")
        if not _takes(method, len(arguments)):
            kind = "async " if name == "fetch" else ""
            raise SetupError(f"{where}: {name}{_written(method)} cannot be called; write `{kind}{header}`")


def _takes(method: Any, arguments: int) -> bool:
    try:
        # As it is called, whatever a decorator says of what is within.
        signature(method, follow_wrapped=False).bind(*[None] * (arguments + 1))
    except TypeError:
        return False
    return True


def _written(method: Any) -> str:
    return f"({', '.join(signature(method, follow_wrapped=False).parameters)})"


def is_used(name: str, given: Mapping[str, Any]) -> bool:
    """Whether a method of the class says this name."""
    functions = (getattr(value, "fget", None) or getattr(value, "__func__", value) for value in given.values())
    return any(says(function.__code__, name) for function in functions if isfunction(function))


def says(code: CodeType, name: str) -> bool:
    """Whether a function, or one within it, has this name in it."""
    return name in code.co_names or any(says(part, name) for part in code.co_consts if isinstance(part, CodeType))

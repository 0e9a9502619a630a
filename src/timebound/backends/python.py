"""The backend for any Python callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timebound.backends.base import Backend
from timebound.errors import SetupError


class PythonBackend(Backend):
    """Calls `function(batch)`. Say `parallel=True` only if it releases the interpreter lock and is thread-safe."""

    kind = "python"

    def __init__(self, function: Callable[[Any], Any], *, parallel: bool = False) -> None:
        if not callable(function):
            raise SetupError(f"python() takes a callable, not a {type(function).__name__}")
        self.parallel = parallel
        self.name = getattr(function, "__name__", "")
        self._function = function

    def __call__(self, batch: Any) -> Any:
        return self._function(batch)


python = PythonBackend
"""As users write it: `tb.python(...)`."""

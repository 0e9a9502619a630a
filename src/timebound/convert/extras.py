"""Whether the libraries that a conversion needs are there: asked before it opens anything, not after minutes."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from timebound.convert.source import KERAS
from timebound.errors import SetupError

_NEEDS = {"torch": ("torch",), "convert": ("onnx", "onnxscript"), "keras": ("keras",)}
"""By extra of this package, the libraries that it brings and that are used here."""


def check_extras(source: str) -> None:
    """Raise `SetupError` that names every library that is missing, and the one command that installs them."""
    extras = ["convert"]
    if not source.endswith(".onnx"):
        extras.insert(0, "torch")
    if source.lower().endswith(KERAS):
        extras.append("keras")
    missing = {extra: [name for name in _NEEDS[extra] if not _is_there(name)] for extra in extras}
    names = [name for each in missing.values() for name in each]
    if names:
        are = "are" if len(names) > 1 else "is"
        wanted = ",".join(extra for extra in extras if missing[extra])
        raise SetupError(
            f"{' and '.join(names)} {are} not installed; install what this conversion needs with: "
            f"pip install 'timebound[{wanted}]'"
        )


def _is_there(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None
    return find_spec(name) is not None

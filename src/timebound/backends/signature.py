"""What a network takes, written and checked: one notation and the same sentences for every library."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from timebound.backends.base import TensorSpec
from timebound.errors import SetupError

_SPEC = re.compile(r"\s*(?:([\w.:/-]+?)\s*:)?\s*([a-z]+[0-9]*)\s*\[([^\]]*)\]\s*")


def parse_spec(text: str) -> TensorSpec:
    """Read "x: float32[any, 3, 224, 224]", the way a spec is printed; without "x:" it is called "input"."""
    found = _SPEC.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        given, dtype, sizes = found.groups()
        shape = tuple(None if size.strip() == "any" else int(size) for size in sizes.split(","))
        np.dtype(dtype)
    except (ValueError, TypeError):
        raise SetupError(f'{text!r} is no input; write it as "x: float32[any, 3, 224, 224]", batch first') from None
    if shape[0] is not None:
        raise SetupError(f'{text!r} fixes the batch; write it with "any" first, as in "x: float32[any, 3, 224, 224]"')
    return TensorSpec(given or "input", dtype, shape)


def feed(label: str, inputs: Sequence[TensorSpec], batch: Any) -> dict[str, Any]:
    """A checked batch by input name: from an array if there is one input, else from a dict; raises `ValueError`."""
    if isinstance(batch, Mapping):
        missing = [spec.name for spec in inputs if spec.name not in batch]
        if missing:
            raise ValueError(f"{label} takes {signature(inputs)}; {', '.join(missing)} is missing")
        given = {spec.name: batch[spec.name] for spec in inputs}
    elif len(inputs) == 1:
        given = {inputs[0].name: batch}
    else:
        raise ValueError(f"{label} takes several inputs, so give a dict: {signature(inputs)}")
    for spec in inputs:
        _check(label, spec, given[spec.name])
    return given


def signature(inputs: Sequence[TensorSpec]) -> str:
    """The inputs as people read them."""
    return ", ".join(str(spec) for spec in inputs)


def _check(label: str, spec: TensorSpec, value: Any) -> None:
    if not isinstance(value, np.ndarray):
        raise ValueError(
            f"{label} takes {spec}, but got a {type(value).__name__}: "
            "its items have different shapes, or prepare() does not return arrays"
        )
    dtype = "str" if value.dtype.kind in "USO" else value.dtype.name
    if dtype != spec.dtype:
        raise ValueError(
            f"{label} takes {spec}, but prepare() gave {dtype}: return .astype(np.{spec.dtype}) from prepare()"
        )
    if not value.ndim or not spec.fits(value.shape[1:]):
        raise ValueError(
            f"{label} takes {spec}, but a batch of prepare()'s arrays has shape "
            f"{tuple(value.shape)}: give items of shape {tuple('any' if w is None else w for w in spec.shape[1:])}"
        )

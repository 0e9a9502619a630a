"""Tiny torch networks and their files, one function per kind."""

from __future__ import annotations

import io
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Doubler(nn.Module):
    """`x + x`; the offset is a weight, zero unless loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + x + self.offset


class SumAndDifference(nn.Module):
    """Two inputs, two named outputs."""

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"sum": a + b, "difference": a - b}


class Pair(nn.Module):
    """One input, two outputs without names."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x - 1


EXAMPLE = torch.zeros(2, 3)


def save_export(path: Path, *, batch: Any = "any", net: nn.Module | None = None) -> Path:
    """A .pt2 file of the doubler; `batch` may be a `Dim`, or None for a fixed one."""
    first = {0: torch.export.Dim("batch") if batch == "any" else batch}
    shapes = None if batch is None else (first,)
    torch.export.save(torch.export.export(net or Doubler().eval(), (EXAMPLE,), dynamic_shapes=shapes), path)
    return path


def save_export_of_two(path: Path) -> Path:
    """A .pt2 file whose second input goes by keyword."""
    batch = torch.export.Dim("batch")
    shapes = {"a": {0: batch}, "b": {0: batch}}
    program = torch.export.export(SumAndDifference(), (EXAMPLE,), {"b": EXAMPLE.clone()}, dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


def save_script(path: Path, *, net: nn.Module | None = None, inputs: str | None = None) -> Path:
    """A TorchScript file, with its signature inside if given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        extra = {} if inputs is None else {"inputs.txt": inputs}
        torch.jit.save(torch.jit.script((net or Doubler()).eval()), path, _extra_files=extra)
    return path


class Trap:
    """An object whose pickle makes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def with_entries(path: Path, entries: Mapping[str, bytes]) -> Path:
    """The archive again, with entries replaced or added under its root folder."""
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(kept)).partition("/")[0]
    kept |= {f"{root}/{name}": data for name, data in entries.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in kept.items():
            archive.writestr(name, data)
    return path


def torch_pickle(thing: Any) -> bytes:
    """What torch.save makes of anything."""
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()

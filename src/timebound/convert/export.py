"""From torch to ONNX: one file, with the batch and every other free dimension left free."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from timebound.backends.torch import TorchBackend
from timebound.convert.reason import reason
from timebound.convert.samples import Samples
from timebound.errors import MissingExtra, SetupError


def write_onnx(net: TorchBackend, path: Path, samples: Samples) -> None:
    """Export a network to `path`; raises `SetupError` with torch's own reason if it cannot be said in ONNX."""
    names = [spec.name for spec in net.inputs]
    # At least two items: exporters take a batch of one for a fixed size.
    arrays = samples.take(0, 2) if len(samples) > 1 else {n: a.repeat(2, 0) for n, a in samples.arrays.items()}
    example = tuple(torch.from_numpy(arrays[name].copy()) for name in names)
    outputs = _output_names(net(arrays if len(names) > 1 else arrays[names[0]]))
    try:
        with _quiet():
            if isinstance(net.program, torch.jit.ScriptModule):
                _export_script(net, path, example, outputs)
            else:
                _export_program(net, path, example, outputs)
        twice = _named_twice(path, outputs)
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "convert") from None
    except Exception as error:
        raise SetupError(f"{net.label} cannot be exported to ONNX: {type(error).__name__}: {reason(error)}") from error
    if twice:
        raise SetupError(
            f"{net.label}: its output {twice[0]} has the name of an input or of a value inside; call it something else "
            "in what forward() returns"
        )


def _named_twice(path: Path, outputs: list[str]) -> list[str]:
    """Outputs whose name the exporter gave to something else too: no engine would read the file."""
    import onnx  # an extra, as the exporters' own needs are

    graph = onnx.load(path).graph
    values = [*graph.input, *graph.initializer]
    names = Counter([*(value.name for value in values), *(name for node in graph.node for name in node.output)])
    return [name for name in outputs if names[name] > 1]


def _export_program(net: TorchBackend, path: Path, example: tuple[Any, ...], outputs: list[str]) -> None:
    names = [spec.name for spec in net.inputs]
    is_exported = isinstance(net.program, torch.export.ExportedProgram)  # it has its shapes already
    shapes = tuple(
        {place: torch.export.Dim.DYNAMIC for place, size in enumerate(spec.shape) if size is None}
        for spec in net.inputs
    )
    torch.onnx.export(
        net.program,
        () if is_exported else example,
        path,
        input_names=names,
        output_names=outputs,
        dynamic_shapes=None if is_exported else shapes,
        external_data=False,  # one file to carry about
        verbose=False,
    )


def _export_script(net: TorchBackend, path: Path, example: tuple[Any, ...], outputs: list[str]) -> None:
    free = {
        spec.name: {
            place: f"{spec.name}_{place}" if place else "batch" for place, s in enumerate(spec.shape) if s is None
        }
        for spec in net.inputs
    }
    names = [spec.name for spec in net.inputs]
    # The older exporter: the newer one does not take scripts.
    torch.onnx.export(
        net.program,
        example,
        str(path),
        input_names=names,
        output_names=outputs,
        dynamic_axes={**free, **{name: {0: "batch"} for name in outputs}},
        dynamo=False,
        opset_version=17,
    )


def _output_names(output: Any) -> list[str]:
    if isinstance(output, dict):
        return list(output)
    return [f"output_{place}" for place in range(len(output))] if isinstance(output, tuple) else ["output"]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters print and warn much; what matters of it comes as an exception."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

"""Capturing one piece of work: tried, compared with the work itself, timed; or the reason why it is not kept."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch

from timebound.devices.base import Device, Graph
from timebound.devices.tree import alike, leaves

Tensors: TypeAlias = Mapping[int | str, Any]
"""What a network takes: by place, or by name."""

_WARM_RUNS = 3
_TIMED_RUNS = 7
_TOLERANCE = 5e-3
"""Of the largest number in an output: the same kernels give the same numbers, but libraries may choose others."""
_OURS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))


class NotCaptured(Exception):
    """This work runs as it is, and the text says why."""


class Piece:
    """Work that reads `inputs` and gives tensors, each with one row for every row of the inputs."""

    def __init__(self, work: Callable[[], Any], inputs: Sequence[Any]) -> None:
        self.work = work
        self.inputs = inputs
        self.rows = len(inputs[0])
        self.kept = [tensor.clone() for tensor in inputs]
        """What the inputs are filled with again when a run may have written into them."""

    def restore(self) -> None:
        """Have the inputs as they were."""
        for tensor, kept in zip(self.inputs, self.kept, strict=True):
            tensor.copy_(kept)


def capture(device: Device, piece: Piece, between: Graph | None) -> tuple[Graph, float]:
    """A graph that gives what the work gives, and the largest difference seen; raises `NotCaptured` with the reason.

    `between` is another graph that runs in between: what two graphs share must not matter.
    """
    for _ in range(_WARM_RUNS):  # libraries choose and load kernels when they first meet a shape
        device.compute(piece.work)
    device.compute(piece.restore)
    try:
        graph = device.capture(piece.work, piece.inputs)
    except Exception as error:
        if device.is_exhausted(error):
            raise
        device.check(error)
        raise NotCaptured(_reason(error)) from error
    try:
        worst = max(_difference(device, piece, graph, between, fill) for fill in (_as_it_is, _zeros, _shuffled))
    except NotCaptured:
        device.forget([graph])
        raise
    finally:
        device.compute(piece.restore)
    return graph, worst


def replay_seconds(device: Device, graph: Graph, piece: Piece) -> float:
    """How long a replay takes on the device, its inputs brought in before as in serving."""

    def launch() -> None:
        device.launch(piece.restore)
        device.replay(graph, piece.rows)

    return _seconds(device, launch)


def run_seconds(device: Device, piece: Piece) -> float:
    """How long the work itself takes on the device."""
    return _seconds(device, lambda: device.compute(piece.work))


def _seconds(device: Device, launch: Callable[[], object]) -> float:
    took = []
    for _ in range(_TIMED_RUNS):
        start = device.mark()
        launch()
        end = device.mark()
        end.wait()
        took.append(end.seconds_since(start))
    return median(took)


def _difference(device: Device, piece: Piece, graph: Graph, between: Graph | None, fill: Callable[[Any], Any]) -> float:
    filled = device.compute(lambda: [fill(kept) for kept in piece.kept])

    def bring() -> None:
        for tensor, value in zip(piece.inputs, filled, strict=True):
            tensor.copy_(value)

    device.compute(bring)
    try:
        wanted = device.compute(lambda: alike(piece.work(), torch.clone))
    except Exception as error:  # zeros, say, may be no input for it
        device.check(error)
        return 0.0
    if between is not None:
        device.replay(between, sys.maxsize)
    device.compute(bring)  # once more: the run may have written into them, and so may the other graph
    device.replay(graph, piece.rows)
    got = device.compute(lambda: alike(graph.outputs, torch.clone))
    off = device.compute(lambda: _off(wanted, got, piece.rows))
    if not off <= _TOLERANCE:
        raise NotCaptured(
            "replayed it gives other numbers than when it runs: something in it is computed outside of the device, "
            "or depends on the values"
        )
    return off


def _off(wanted: Any, got: Any, rows: int) -> float:
    pairs = list(zip(leaves(wanted), leaves(got), strict=True))
    for tensor, _ in pairs:
        if not tensor.dim() or len(tensor) != rows:
            raise NotCaptured(f"an output has the shape {list(tensor.shape)} for {rows} items")
    return max((_off_one(*pair) for pair in pairs), default=0.0)


def _off_one(wanted: Any, got: Any) -> float:
    if wanted.numel() == 0:
        return 0.0
    wanted, got = wanted.double(), got.double()
    if not torch.equal(wanted.isnan(), got.isnan()):
        return float("inf")
    difference = (wanted - got).nan_to_num(0.0).abs().max().item()
    return float(difference) / max(float(wanted.nan_to_num(0.0).abs().max().item()), 1e-6)


def _as_it_is(kept: Any) -> Any:
    return kept


def _zeros(kept: Any) -> Any:
    return torch.zeros_like(kept)


def _shuffled(kept: Any) -> Any:
    """Other values than the example's, and none that the example does not have: they may be indices."""
    flat = kept.reshape(-1)
    return flat[torch.randperm(len(flat), device=flat.device)].reshape(kept.shape)


def _reason(error: BaseException) -> str:
    """One line, with the user's own line of code."""
    text = str(error).strip()
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{first[:200]}{where}"

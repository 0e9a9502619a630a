"""Two lengths in one batch, tried at the warm-up: who cannot compute them together is told then, and not under load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from timebound.errors import SetupError
from timebound.importer import describe
from timebound.model import padded_fields
from timebound.workers.fetching import has_fetch
from timebound.workers.padding import Padding
from timebound.workers.runner import CAUGHT, Runner

_FAR, _NEAR = 0.05, 0.001
"""Answers alone and in company differ by more than this share of the largest number, and this: then padding shows."""


def try_lengths(runner: Runner, body: bytes) -> list[str]:
    """Compute the example beside one of another length; raises `SetupError` if only both together fail.

    Returns sentences for people: what came out, and may be meant so.
    """
    cls = type(runner.model)
    if cls.max_batch < 2 or not (padded_fields(cls) or isinstance(cls.size, str)):
        return []
    try:
        whole = runner.model.prepare(runner.decode(body))
    except CAUGHT:  # the warm-up run has told it
        return []
    others = _of_other_lengths(runner, whole) if padded_fields(cls) else _of_shorter_bodies(runner, body)
    why = None
    for other in others:
        try:
            alone = [runner.infer([each])[0] for each in (whole, other)]
        except CAUGHT as error:
            why = error
            continue
        return _try_together(runner, [whole, other], alone)
    if why is not None and padded_fields(cls):
        raise SetupError(
            f"{runner.name}: pad says that lengths vary, and infer() failed on half the length of the example, and on "
            f"twice: {describe(why)}; export the network with that dimension free, or remove pad"
        ) from why
    return []


def _try_together(runner: Runner, items: list[Any], alone: list[Any]) -> list[str]:
    try:
        together = runner.infer(items)
    except CAUGHT as error:
        raise SetupError(
            f"{runner.name}: infer() failed on two requests of different length in one batch: {describe(error)}; "
            f"{_cure(runner)}"
        ) from error
    if not padded_fields(type(runner.model)) or all(map(_is_alike, alone, together)):
        return []
    return [
        f"{runner.name}: the shorter of two requests is answered otherwise in one batch than alone; "
        "does infer() use the mask?"
    ]


def _cure(runner: Runner) -> str:
    if padded_fields(type(runner.model)):
        return "let infer() take what pad gives it, a dict with the padded arrays and their mask; or set max_batch = 1"
    return (
        'let the server pad them: pad = "ids" for the arrays that prepare() gives under this name; '
        "or use tb.text.pad in infer(), or set max_batch = 1"
    )


def _of_other_lengths(runner: Runner, whole: Any) -> Iterator[Any]:
    """The item with half the length, and with twice."""
    padding = Padding(padded_fields(type(runner.model)))
    columns = padding.columns(whole)
    length = len(np.asarray(columns[padding.fields[0]]))
    if length > 1:
        yield {**columns, **{name: np.asarray(columns[name])[: length // 2] for name in padding.fields}}
    if length:
        yield {**columns, **{name: np.concatenate([np.asarray(columns[name])] * 2) for name in padding.fields}}


def _of_shorter_bodies(runner: Runner, body: bytes) -> Iterator[Any]:
    """The item of a body whose `size` field has half the length, if there can be one and the model takes it."""
    *path, name = str(type(runner.model).size).split(".")
    if has_fetch(runner.model):
        return
    try:
        inner = fields = msgspec.json.decode(body)
        for part in path:
            inner = inner[part]
        inner[name] = inner[name][: len(inner[name]) // 2]
        yield runner.model.prepare(runner.decode(msgspec.json.encode(fields)))
    except CAUGHT:  # a number, something that is not there, or a length that the model refuses
        return


def _is_alike(alone: Any, together: Any) -> bool:
    """Whether two outputs are the same, but for what rounding does; what has other shapes is not compared."""
    if isinstance(alone, Mapping):
        return all(_is_alike(alone[name], together[name]) for name in alone)
    if isinstance(alone, tuple):
        return all(map(_is_alike, alone, together))
    left, right = np.asarray(alone), np.asarray(together)
    if left.shape != right.shape or left.dtype.kind not in "fiu":
        return True
    return bool(np.abs(left - right).max(initial=0) <= max(_NEAR, _FAR * np.abs(left).max(initial=0)))

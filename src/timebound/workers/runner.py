"""Computes one batch inside a worker: prepare each item, infer all together, finish each; one outcome per item."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from timebound.body import read_json
from timebound.clock import Clock
from timebound.errors import RequestError
from timebound.model import Model, name_of
from timebound.types import Outcome, Timing

log = logging.getLogger("timebound.worker")


class Runner:
    """Runs batches of one model. Safe to use from several slots if the model is."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self.model = model
        self.name = name_of(type(model))
        self.members = len(getattr(model.net, "members", ())) or 1
        self._clock = clock
        request = type(model).Request
        self._decode: Callable[[Any], Any] = bytes if request is None else msgspec.json.Decoder(request).decode
        self._encode = msgspec.json.Encoder(enc_hook=_plain).encode

    def run(self, bodies: Sequence[bytes | memoryview]) -> tuple[list[Outcome], Timing]:
        """One outcome per body, in order; never raises for what a client or the model did wrong."""
        outcomes: list[Outcome | None] = [None] * len(bodies)
        start = self._clock.now()
        requests, items, places = [], [], []
        for place, body in enumerate(bodies):
            try:
                request = self.decode(body)
                item = self.model.prepare(request)
            except Exception as error:
                outcomes[place] = self._failure(error, "prepare")
            else:
                requests.append(request)
                items.append(item)
                places.append(place)
        prepared = self._clock.now()
        outputs = self._infer_apart(items)
        inferred = self._clock.now()
        for place, request, output in zip(places, requests, outputs, strict=True):
            outcomes[place] = self._finish(request, output)
        timing = Timing(prepared - start, inferred - prepared, self._clock.now() - inferred)
        return [outcome for outcome in outcomes if outcome is not None], timing

    def decode(self, body: bytes | memoryview) -> Any:
        """The typed request of a body, or the raw bytes; raises `RequestError` naming the field at fault."""
        return read_json(self._decode, body)

    def infer(self, items: Sequence[Any]) -> list[Any]:
        """One output per item; raises `ValueError` if the model gives another number of them."""
        outputs = self.model.infer(stack(items))
        return unstack(outputs, len(items), self.name)

    def encode(self, answer: Any) -> Outcome:
        """An answer as the client will get it: JSON, or bytes as they are."""
        if isinstance(answer, bytes | bytearray):
            return Outcome(bytes(answer), media="application/octet-stream")
        return Outcome(self._encode(answer))

    def _infer_apart(self, items: list[Any]) -> list[Any]:
        """Outputs, or the exception in the place of an item that fails: a failing batch is halved to find it."""
        if not items:
            return []
        try:
            return self.infer(items)
        except Exception as error:
            if len(items) == 1:
                return [error]
        middle = len(items) // 2
        return self._infer_apart(items[:middle]) + self._infer_apart(items[middle:])

    def _finish(self, request: Any, output: Any) -> Outcome:
        if isinstance(output, Exception):
            return self._failure(output, "infer")
        try:
            return self.encode(self.model.finish(output, request))
        except Exception as error:
            return self._failure(error, "finish")

    def _failure(self, error: Exception, stage: str) -> Outcome:
        """Our own errors are shown to the client; anything else is logged in full and answered neutrally."""
        if isinstance(error, RequestError):
            return failure(error.code, error.detail, error.field)
        if stage == "prepare" and isinstance(error, ValueError):
            # What a typical prepare raises on unfit input (int("x"), np.frombuffer, json ...): the client's doing.
            return failure("bad_input", f"the input cannot be used ({type(error).__name__})")
        log.error("%s.%s failed", self.name, stage, exc_info=error)
        return failure("model_failed", f"{stage} failed on this item; the server's log has the details")


def failure(code: str, detail: str, field: str | None = None) -> Outcome:
    """An item's error as it crosses the wire."""
    return Outcome(msgspec.json.encode({"detail": detail, "field": field}), code=code)


def stack(items: Sequence[Any]) -> Any:
    """A batch from items: arrays (or dicts or tuples of arrays) of one shape are stacked, anything else is a list."""
    first = items[0]
    if isinstance(first, np.ndarray):
        same = all(isinstance(i, np.ndarray) and i.shape == first.shape and i.dtype == first.dtype for i in items)
        return np.stack(items) if same else list(items)
    if isinstance(first, dict) and first and all(isinstance(i, dict) and i.keys() == first.keys() for i in items):
        return {name: stack([item[name] for item in items]) for name in first}
    if isinstance(first, tuple) and first and all(isinstance(i, tuple) and len(i) == len(first) for i in items):
        return tuple(stack([item[place] for item in items]) for place in range(len(first)))
    return list(items)


def unstack(outputs: Any, count: int, name: str) -> list[Any]:
    """One output per item, from arrays, dicts or tuples of arrays, or a list."""
    if isinstance(outputs, dict):
        columns = {key: unstack(value, count, name) for key, value in outputs.items()}
        return [{key: column[row] for key, column in columns.items()} for row in range(count)]
    if isinstance(outputs, tuple):
        parts = [unstack(value, count, name) for value in outputs]
        return [tuple(part[row] for part in parts) for row in range(count)]
    try:
        rows = list(outputs)
    except TypeError:
        raise ValueError(f"{name}.infer returned a {type(outputs).__name__}; return one output per item") from None
    if len(rows) != count:
        raise ValueError(f"{name}.infer returned {len(rows)} outputs for {count} items; return one output per item")
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"an answer holds a {type(value).__name__}, which JSON cannot say; convert it in finish()")

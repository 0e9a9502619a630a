"""How an item's failure is told over the wire, and which failures are for want of memory."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from timebound.errors import DeviceLost, RequestError, text_of
from timebound.types import Outcome
from timebound.workers.depth import is_too_deep

log = logging.getLogger("timebound.worker")

_NO_MEMORY = ("failed to allocate memory", "bad_alloc", "out of memory", "can't allocate memory", "bad allocation")
_MOST_CAUSES = 100


def is_for_want_of_memory(error: BaseException) -> bool:
    """Whether Python, torch or onnxruntime could not allocate; the latter two say so only in name or text."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = text_of(error).lower()
    return any(sign in text for sign in _NO_MEMORY)


def is_lost_device(error: BaseException) -> bool:
    """Whether a device computes no more in this process; what torch says of one in code that is the user's own."""
    reason: BaseException | None = error
    for _ in range(_MOST_CAUSES):  # `raise error from error` is a ring
        if reason is None:
            break
        if isinstance(reason, DeviceLost) or (isinstance(reason, RuntimeError) and "CUDA error:" in text_of(reason)):
            return True
        reason = reason.__cause__
    return False


def failure(code: str, detail: object, field: object = None, *, status: int | None = None) -> Outcome:
    """An item's error as it crosses the wire; `status` is for protocols in which the model says it itself."""
    facts: dict[str, Any] = {"detail": text_of(detail), "field": None if field is None else text_of(field)}
    if status is not None:
        facts["status"] = status
    return Outcome(msgspec.json.encode(facts), code=code)


def item_failure(name: str, error: BaseException, stage: str, body: bytes | memoryview) -> Outcome:
    """Our own errors are shown to the client; anything else is logged in full and answered neutrally."""
    neutral = failure("model_failed", f"{stage} failed on this item; the server's log has the details")
    try:
        return _told(name, error, stage, body) or neutral
    except BaseException as another:
        kinds = type(error).__name__, type(another).__name__
        log.error("%s.%s failed: %s, of which nothing can be told: %s", name, stage, *kinds)
        return neutral


def _told(name: str, error: BaseException, stage: str, body: bytes | memoryview) -> Outcome | None:
    if isinstance(error, RequestError):
        return _shown(error)
    if stage == "prepare" and isinstance(error, ValueError):
        # What a typical prepare raises on unfit input (int("x"), np.frombuffer, json ...): the client's doing.
        return failure("bad_input", f"the input cannot be used ({type(error).__name__})")
    if isinstance(error, RecursionError) and is_too_deep(body):
        return failure("bad_input", "the input is nested too deeply")
    log.error("%s.%s failed", name, stage, exc_info=error)
    return None


def _shown(error: RequestError) -> Outcome:
    """A class of the user's may have another `__init__`, and set what it likes."""
    code: object = error.code
    detail, field = getattr(error, "detail", error), getattr(error, "field", None)
    return failure(code if isinstance(code, str) and code else "model_failed", detail, field)

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


def is_for_want_of_memory(error: BaseException) -> bool:
    """Whether Python, torch or onnxruntime could not allocate; the latter two say so only in name or text."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = text_of(error).lower()
    return any(sign in text for sign in _NO_MEMORY)


def is_lost_device(error: BaseException) -> bool:
    """Whether a device computes no more in this process; what torch says of one in code that is the user's own."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, DeviceLost) or (isinstance(reason, RuntimeError) and "CUDA error:" in text_of(reason)):
            return True
        reason = reason.__cause__
    return False


def failure(code: str, detail: str, field: str | None = None, *, status: int | None = None) -> Outcome:
    """An item's error as it crosses the wire; `status` is for protocols in which the model says it itself."""
    facts: dict[str, Any] = {"detail": text_of(detail), "field": None if field is None else text_of(field)}
    if status is not None:
        facts["status"] = status
    return Outcome(msgspec.json.encode(facts), code=code)


def item_failure(name: str, error: BaseException, stage: str, body: bytes | memoryview) -> Outcome:
    """Our own errors are shown to the client; anything else is logged in full and answered neutrally."""
    if isinstance(error, RequestError):
        return failure(error.code, error.detail, error.field)
    if stage == "prepare" and isinstance(error, ValueError):
        # What a typical prepare raises on unfit input (int("x"), np.frombuffer, json ...): the client's doing.
        return failure("bad_input", f"the input cannot be used ({type(error).__name__})")
    if isinstance(error, RecursionError) and is_too_deep(body):
        return failure("bad_input", "the input is nested too deeply")
    log.error("%s.%s failed", name, stage, exc_info=error)
    return failure("model_failed", f"{stage} failed on this item; the server's log has the details")

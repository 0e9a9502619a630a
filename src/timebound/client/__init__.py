"""Asking a Timebound server from Python: `tb.Client` and `tb.AsyncClient`, their answers and their errors.

Needs httptools and msgspec, and nothing of the server.
"""

from __future__ import annotations

from timebound.client.answer import Answer, Timings
from timebound.client.asking import Served
from timebound.client.errors import (
    BadRequest,
    Busy,
    CallFailed,
    DeadlineMissed,
    ModelFailed,
    NotAllowed,
    NotFound,
    Unreachable,
    WrongAnswer,
)

__all__ = [
    "Answer",
    "BadRequest",
    "Busy",
    "CallFailed",
    "DeadlineMissed",
    "ModelFailed",
    "NotAllowed",
    "NotFound",
    "Served",
    "Timings",
    "Unreachable",
    "WrongAnswer",
]

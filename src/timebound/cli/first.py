"""Signals to the first process of a container: Linux keeps from it every one that it has no handler for."""

from __future__ import annotations

import os
import signal
from typing import Any


def listen() -> None:
    """From now on end when told to, until somebody else listens."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def leave(number: int, *_: Any) -> None:
    """End at once, with the exit code that the signal stands for."""
    os._exit(128 + number)

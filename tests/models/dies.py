"""Kills its own process when a request says so."""

import os
import signal
from typing import Any

import timebound as tb


class Dies(tb.Model):
    deadline = 50.0
    example = {"die": False}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        die: bool

    def infer(self, batch: Any) -> Any:
        if any(request.die for request in batch):
            os.kill(os.getpid(), signal.SIGKILL)
        return ["alive" for _ in batch]

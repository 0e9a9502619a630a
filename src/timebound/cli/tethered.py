"""`python -m timebound.cli.tethered FILE ...` does what `timebound ...` does, while a pipe's other end is held.

FILE is the number of the end that it reads. Nothing is ever written: it comes to its end when whoever has the other one
is gone, however that went.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from timebound.cli import process


def leave_with(tether: int) -> None:
    """Leave as if told to, once the other end is let go."""
    os.read(tether, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    tether = int(sys.argv.pop(1))
    os.set_inheritable(tether, False)
    threading.Thread(target=leave_with, args=(tether,), name="tether", daemon=True).start()
    sys.exit(process())

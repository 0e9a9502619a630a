"""The `timebound` command: one file per verb. This one imports nothing, so that Ctrl-C is understood from the start."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 done, 1 nothing found, 2 a mistake to fix (one sentence on stderr), 130 interrupted."""
    try:
        from timebound.cli.command import run

        return run(arguments)
    except KeyboardInterrupt:
        return 130


def process() -> int:
    """The same for a process of its own: while it imports, with nothing to clean up yet, it ends when it is told to."""
    if os.getpid() == 1:
        from timebound.cli.first import listen

        listen()
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as behind nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return main()

"""Tells the gateway what handlers measure, a few times a second at the most, on the worker's control channel."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from timebound.handlers.measures import Measures
from timebound.workers import messages, wire

_PAUSE_S = 0.25


def tell_measures(control: socket.socket, measures: Sequence[Measures]) -> None:
    """Start telling; nothing else may write to `control` from now on."""
    if measures:
        threading.Thread(target=_tell, args=(control, measures), name="measures", daemon=True).start()


def _tell(control: socket.socket, measures: Sequence[Measures]) -> None:
    news, pause = threading.Event(), threading.Event()
    for each in measures:
        each.news = news
    while True:
        news.wait()
        pause.wait(_PAUSE_S)  # what comes meanwhile goes along
        news.clear()
        rows = [row for each in measures for row in each.take()]
        try:
            wire.write_frame(control, messages.Measures(rows))
        except OSError:
            return  # the gateway is gone

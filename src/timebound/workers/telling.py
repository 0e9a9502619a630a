"""What a worker tells the gateway while it computes a batch, and what it hears of that."""

from __future__ import annotations

import select
import socket

from timebound.errors import TimeboundError
from timebound.types import Part, Report
from timebound.workers import messages, wire


def ask_gateway(sock: socket.socket, batch_id: int, report: Report) -> bool:
    """Report what there is after a member, and unless it is a note wait to hear whether the next one is to run."""
    wire.write_frame(sock, messages.Outcomes(batch_id, report))
    if report.is_note:
        return True
    while (frame := wire.read_frame(sock)) is not None:
        decision = frame[0]
        if isinstance(decision, messages.Decision) and decision.id == batch_id:
            return decision.go
        if not isinstance(decision, messages.Unwanted):  # that may come when its batch is over
            raise TimeboundError(f"expected the decision on batch {batch_id}, got {type(decision).__name__}")
    raise ConnectionError("the gateway closed its end")


def tell_pieces(sock: socket.socket, batch_id: int, parts: dict[int, list[Part]]) -> list[int]:
    """Tell pieces of answers; the places of items that nobody wants more of."""
    wire.write_frame(sock, messages.Pieces(batch_id, parts))
    unwanted: list[int] = []
    while select.select([sock], [], [], 0)[0]:
        frame = wire.read_frame(sock)
        if frame is None:
            raise ConnectionError("the gateway closed its end")
        if isinstance(frame[0], messages.Unwanted) and frame[0].id == batch_id:
            unwanted += frame[0].places
    return unwanted

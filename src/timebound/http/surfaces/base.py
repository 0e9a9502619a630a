"""The contract of a surface: one protocol over HTTP, from the bytes of a request to items and from results to bytes.

A surface knows no scheduler, and no other surface. Who is asking, how long it may take and under which key is the
same for all of them: `http/intake.py` reads that from the headers, and takes the surface's word where its protocol has
a place of its own for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from timebound.clock import Clock
from timebound.errors import RequestError
from timebound.http.flow import Respond
from timebound.reading import Errand
from timebound.tensors.pieces import Steps
from timebound.types import ModelInfo, Part, Question, Result

Reply: TypeAlias = tuple[int, bytes, bytes]
"""Status, header lines (each ended by CRLF) and body."""


class Item(msgspec.Struct, eq=False):
    """One item of a request: it is scheduled by itself, and may share a batch with strangers."""

    body: bytes
    key: str | None = None
    size: float = 1.0
    fingerprint: bytes = b""
    """Of its body, if that was looked at elsewhere."""


class Asked(msgspec.Struct, eq=False):
    """What a request asks: its items in order, and what its body says of them all."""

    items: Sequence[Item]
    timeout_s: float | None = None
    priority: int | None = None
    context: Any = None
    """What `write` has to know of the request; nobody else looks at it."""
    wrap: Callable[[Respond, float, Clock], Respond] | None = None
    """What is to come between it and its client; called with the way there, the deadline and the clock."""
    follow: Callable[[Question, Result | list[Part]], None] | None = None
    """Told every better answer before the last, and every piece of one."""
    hold: Any = None
    """The part of the gateway's memory that its items take, where that is not what its body takes."""


class Read(msgspec.Struct, eq=False):
    """What a reader elsewhere said of a body, and the part of the gateway's memory that this takes."""

    said: bytes
    hold: Any = None


class Surface(Protocol):
    """One protocol as it asks one model; made for every model that is served.

    One whose whole body is one item, as the model takes it, says so with `is_whole = True`. Its heavy bodies are then
    looked at elsewhere, and `read` gets what was found as a third argument: the item's key, size and fingerprint.
    Any may have `elsewhere` of `Apart`, which is asked first, and `in_steps` of `Gradual`.
    One with a `lone_path` asks the only model there, where there is one.
    One that is for some models only has `is_for(info)`; `methods` are those that it takes besides POST. With
    `takes_rest` it answers below the path of a version too, and with that or `takes_query` the target of a request is
    in its fields where it says more than the path (`http/target.py`).
    """

    def __init__(self, info: ModelInfo) -> None: ...

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        """Where this protocol asks the model, whichever of its versions answers."""

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        """Where it asks this very version."""

    def read(self, fields: Mapping[bytes, bytes], body: bytes) -> Asked:
        """The items of a request; raises `RequestError` that names what is wrong with it."""

    def write(self, asked: Asked, questions: Sequence[Question], results: Sequence[Result | RequestError]) -> Reply:
        """The answer: for every item, in order, its result or its error."""

    def refuse(self, error: RequestError, request_id: str) -> Reply:
        """The answer to a request that is not let in."""


@runtime_checkable
class Gradual(Protocol):
    """A surface whose large answers take longer to write than an event loop has time for at once."""

    def in_steps(
        self, asked: Asked, questions: Sequence[Question], results: Sequence[Result | RequestError]
    ) -> Steps[Reply]:
        """The same as `write`, with a pause after each millisecond of work or less."""


@runtime_checkable
class Apart(Protocol):
    """A surface whose heavy bodies are read by a reader of its own, in the process that `reading/` starts."""

    def elsewhere(self, fields: Mapping[bytes, bytes], body: bytes, most: int) -> Errand | None:
        """What the reader is to do, if this body is not to be read on the event loop; `most` bytes may be unpacked.

        `read` gets what it says as a third argument: a `Read`.
        """

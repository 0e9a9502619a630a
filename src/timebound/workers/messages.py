"""What gateway and worker tell each other: the heads of the frames in `wire.py`."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from timebound.types import ModelInfo


class Load(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, control: load this target; use at most `max_slots` slots, `threads` each.

    An understudy imports the target without loading it: no weights, and no slots that infer.
    """

    target: str
    max_slots: int
    threads: int
    niceness: int
    log_level: str
    log_json: bool
    is_understudy: bool = False
    versions: dict[str, list[str]] = {}
    """By model, the versions to load; without a word, the newest."""
    engines: dict[str, str] = {}
    """By model, what its ONNX files run on; under "" for all others."""


class Ready(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, control: every model is loaded and has answered its warm-up run."""

    models: list[ModelInfo]
    slots: int
    doubts: list[str] = []
    """What looks like a mistake and is none for sure; sentences for people."""


class Failed(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, control: cannot load; `sentence` is for people, `trace` for `--debug`."""

    sentence: str
    trace: str


class Stop(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, control: finish running batches and leave."""


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, slot: compute these; the body holds one payload per length."""

    id: int
    model: str
    lengths: list[int]
    ask_after_s: float = 0.0
    """From then on the worker waits for a `Decision` after each ensemble member; before, it only reports."""
    cores: int = 1
    """How many cores are free for it: with more than one, members may run side by side, and nothing is asked."""
    votes: list[int] = []
    """Places of the items whose clients want to know what each member says by itself."""


class Outcomes(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, slot: one outcome per item of the batch, in order.

    With fewer `members` than `of_members` these are the best answers so far, and the worker waits for a `Decision`,
    unless it `is_note`: then it goes on.
    """

    id: int
    codes: list[str]
    media: list[str]
    lengths: list[int]
    prepare_s: float
    infer_s: float
    finish_s: float
    members: int
    of_members: int
    votes: dict[int, str] = {}
    """By place, for the items that asked: what each member says by itself."""
    is_note: bool = False
    is_short_of_memory: bool = False


class Decision(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, slot: go on with the batch's next member, or leave it at what was reported."""

    id: int
    go: bool


class Errand(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to understudy: for each payload run `fallback` or `size` of its model."""

    numbers: list[int]
    duties: list[str]
    models: list[str]
    lengths: list[int]


class ErrandDone(msgspec.Struct, array_like=True, frozen=True):
    """Understudy to gateway: a size, or an answer (its bytes are the body), or a code that says why not."""

    number: int
    code: str
    media: str
    size: float


Head: TypeAlias = Load | Ready | Failed | Stop | Batch | Outcomes | Decision | Errand | ErrandDone
KINDS: tuple[type[Head], ...] = (Load, Ready, Failed, Stop, Batch, Outcomes, Decision, Errand, ErrandDone)

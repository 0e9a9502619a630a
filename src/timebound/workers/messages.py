"""What gateway and worker tell each other: the heads of the frames in `wire.py`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeAlias, get_args

import msgspec

from timebound.types import Measured, ModelInfo, Outcome, Part, Report

DEVICE_LOST = 71
"""The exit code of a worker whose device failed."""
NICENESS = 10
"""Of what computes on cores that the gateway needs too."""
DEVICE_SLOTS = 2
"""Of a worker with a device: one batch is computed, and the next one prepared."""
_MOST_HANDS = 8
FALLBACK, SIZE, REDACT = "fallback", "size", "redact"
"""What an understudy does."""


class Role(StrEnum):
    """What a process is started for."""

    WORKER = "worker"
    """Computes batches, in slots."""
    UNDERSTUDY = "understudy"
    """Runs `fallback` and `size`, without weights."""
    FETCHER = "fetcher"
    """Runs `fetch` in an event loop, without weights."""


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What workers to run; None leaves a number to the machine and the backend."""

    target: str
    cores: int
    workers: int | None = None
    slots: int | None = None
    threads: int | None = None
    app: dict[str, Any] = {}
    """The app's own settings."""
    engines: dict[str, str] = {}
    """By model, what its ONNX files run on; under "" for all others."""
    modes: dict[str, str] = {}
    """Likewise, how its networks of torch compute."""
    max_batch: int | None = None
    """No model's batches are larger, whatever its class says."""
    log_level: str = "info"
    log_json: bool = False
    log_colour: bool = False
    versions: dict[str, list[str]] = {}
    """By model, the versions to load; without a word, the newest."""
    hands: int | None = None
    """Processes of each worker that prepare for it: 0 for none, None for as many as suit a device, and none without."""
    device: str = ""
    """What networks run on, whatever they were opened for; empty leaves it to them."""
    gpus: list[str] = []
    """Those that may be used, as `CUDA_VISIBLE_DEVICES` names them."""
    load_timeout_s: float = 300.0
    """How long a worker may take until it has answered its warm-up run."""

    def strangers(self, models: Sequence[ModelInfo]) -> list[tuple[str, str]]:
        """Options and the models that they name and that are not among these; versions go by their model's name."""
        there = {"", *(info.base for info in models)}
        named = {"engine": self.engines, "torch": self.modes}
        return [(option, name) for option, chosen in named.items() for name in chosen if name not in there]

    def hands_for(self, *, has_device: bool) -> int:
        """How many processes prepare for each worker; two at least, so that one is left when one is lost."""
        if self.hands is not None or not has_device:
            return self.hands or 0
        return max(2, min(_MOST_HANDS, self.cores // (2 * max(1, len(self.gpus)))))

    @property
    def cpu_slots(self) -> int:
        """Batches that one worker may compute at once on its share of the cores."""
        return self.slots or max(1, self.cores // (self.workers or 1))

    def threads_for(self, slots: int) -> int:
        """How many threads each of so many slots of a worker computes with."""
        return self.threads or max(1, self.cores // ((self.workers or 1) * slots))

    @property
    def slot_threads(self) -> int:
        """The same for the slots it may have on its share of the cores."""
        return self.threads_for(self.cpu_slots)

    @property
    def most_slots(self) -> int:
        """The most that a worker may turn out to have, once it has loaded."""
        return max(self.cpu_slots, 1 if self.slots else DEVICE_SLOTS)

    def slots_for(self, *, has_device: bool) -> int:
        """How many slots a worker has whose models run in threads."""
        return self.slots or DEVICE_SLOTS if has_device else self.cpu_slots

    def wanted(self, slots: int, models: Sequence[ModelInfo] = ()) -> int:
        """How many workers to run, if one of them has so many slots and these models."""
        devices = {info.device for info in models} - {"cpu"}
        if devices:  # who names a GPU by its number wants that one
            return self.workers or (len(self.gpus) if devices == {"cuda:0"} else 1) or 1
        # A backend that runs in threads serves all cores from one copy of the weights; others need processes.
        if self.workers is None and self.slots is None and slots < self.cores:
            return self.cores
        return self.workers or 1

    def gpu_for(self, taken: Sequence[int | None], models: Sequence[ModelInfo]) -> int:
        """The place of the GPU that fewest of the workers have; the first where classes name one by its number."""
        if {info.device for info in models} - {"cpu", "cuda:0"}:
            return 0  # a worker counts from its own: so that all mean the same one
        return min(range(len(self.gpus)), key=taken.count)


class Load(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, control: load the plan's target; use at most `max_slots` slots, `threads` each.

    An understudy and a fetcher import the target without loading it: no weights, and no slots that infer.
    """

    plan: WorkerPlan
    max_slots: int
    threads: int
    niceness: int
    role: Role = Role.WORKER
    beside_bytes: int = 0
    """What the worker that serves now, on the same device, needed of its memory beyond the weights; 0 without one."""
    fetched: dict[str, bytes] = {}
    """By model, its example with what `fetch` gave for it; empty if that is to be found out."""
    is_first: bool = True
    """Whether its generation has served nothing yet; who replaces another need not ask the world first."""


class Ready(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, control: every model is loaded and has answered its warm-up run."""

    models: list[ModelInfo]
    slots: int
    doubts: list[str] = []
    """What looks like a mistake and is none for sure; sentences for people."""
    device_bytes: int = 0
    """What warming up took of the device's memory."""
    at_work: int = -1
    """Of a process beside the workers: the file in which it notes what it is at."""


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, control: it is still preparing, and how far it is; a sentence for people."""

    sentence: str


class Failed(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, control: cannot load; `sentence` is for people, `trace` for `--debug`."""

    sentence: str
    trace: str


class Measures(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, control: what handlers have measured since the last of these."""

    rows: list[Measured]


class Stop(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, control: finish running batches and leave."""


class Compute(msgspec.Struct, array_like=True, frozen=True):
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
    quiet_s: float = 0.0
    """Until then nothing is reported or asked between the `sure` members."""
    is_suspect: bool = False
    """Whether one of the items may be what killed a worker."""
    sure: int = 0
    """So many members run in any case; on a device none beyond them is begun before a `Decision`. 0: not known."""


class Outcomes(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, slot: what became of the batch.

    With fewer members than all these are the best answers so far, and the worker waits for a `Decision`, unless the
    report `is_note`: then it goes on.
    """

    id: int
    report: Report


class Unprepared(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, slot: the batch has a shape that its device did not prepare before serving.

    Where that `is_new` to this worker, it may take far longer than any other, and so may those that wait behind it.
    """

    is_new: bool


class Decision(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, slot: go on with the batch's next member, or leave it at what was reported."""

    id: int
    go: bool


class Pieces(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, slot: what `finish` has yielded since the last of these, by the items' places."""

    id: int
    parts: dict[int, list[Part]]


class Unwanted(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, slot: nobody waits for more pieces of these items. May come when the batch is over."""

    id: int
    places: list[int]


class Call(msgspec.Struct, array_like=True, frozen=True):
    """One thing to be done by an understudy or a fetcher: the `duty`, such as `fallback`, of a model on this body."""

    number: int
    duty: str
    model: str
    body: bytes


class Errand(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to understudy or fetcher: run these calls."""

    calls: list[Call]


class ErrandDone(msgspec.Struct, array_like=True, frozen=True):
    """Its answer: a size, what was answered or fetched, or an outcome whose code says why not."""

    number: int
    outcome: Outcome
    size: float


Head: TypeAlias = (
    Load
    | Ready
    | Failed
    | Stop
    | Compute
    | Outcomes
    | Decision
    | Errand
    | ErrandDone
    | Measures
    | Unprepared
    | Progress
    | Pieces
    | Unwanted
)
KINDS: tuple[type[Head], ...] = get_args(Head)

"""The data that passes between rooms: small, no I/O, no behaviour."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from timebound.errors import RequestError


class Quality(StrEnum):
    """How much of the model is in an answer."""

    FULL = "full"
    PARTIAL = "partial"
    FALLBACK = "fallback"


class Source(StrEnum):
    """How an answer came about."""

    COMPUTED = "computed"
    JOINED = "joined"
    STORED = "stored"


class Body(StrEnum):
    """What a model takes as request body."""

    JSON = "json"
    RAW = "raw"


class Loss(StrEnum):
    """How a worker was lost."""

    CRASHED = "crashed"
    """It ended by itself, or by a signal such as SIGSEGV."""
    KILLED = "killed"
    """By a SIGKILL that this server did not send: somebody's, or the system's for want of memory."""
    HUNG = "hung"
    """It was killed here, because a batch took far too long."""
    STOPPED = "stopped"
    """The same, but somebody had stopped the process: no batch's doing."""
    DEVICE = "device"
    """Its device failed, and whatever is asked of it in that process."""
    GONE = "gone"
    """It was to go."""


class Sample(msgspec.Struct, frozen=True):
    """A body to try on the page: a JSON value, or a raw body as base64 in `data`."""

    title: str
    body: Any = None
    data: str | None = None
    media: str | None = None


ENGINES = {
    "onnxruntime": "timebound.backends.onnxruntime",
    "onnxruntime-int8": "timebound.backends.onnxruntime",
    "openvino-f32": "timebound.backends.openvino",
    "openvino-bf16": "timebound.backends.openvino",
}
"""What runs ONNX files, the default first, and the module whose `open_session` opens one on it."""
DTYPES = ("float32", "float16", "bfloat16")
CHANNELS_LAST, COMPILE = "channels-last", "compile"
OWN = "own"
"""How networks of torch compute: as they say themselves, or some of the words above joined by `+`."""


def is_mode(text: str) -> bool:
    """Whether this says how networks of torch compute: `own`, `bfloat16`, `bfloat16+compile` ..."""
    words = text.split("+")
    known = {*DTYPES, CHANNELS_LAST, COMPILE}
    return text == OWN or (set(words) <= known and len(set(words)) == len(words) and len({*words} & {*DTYPES}) <= 1)


STORES = {
    "memory": "timebound.store.memory",
    "none": "timebound.store.none",
    "redis": "timebound.store.redis",
    "rediss": "timebound.store.redis",
    "unix": "timebound.store.redis",
    "redis-cluster": "timebound.store.cluster",
    "rediss-cluster": "timebound.store.cluster",
}
"""Where results are kept: the option's word, or the scheme of its URL, and the module whose `open_store` opens it."""


class Tensor(msgspec.Struct, frozen=True):
    """An input or output of a model as tensor protocols know it: -1 is a free dimension, the first is the batch."""

    name: str
    datatype: str
    """By the names of the Open Inference Protocol, such as FP32 or BYTES."""
    shape: list[int]
    is_optional: bool = False


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells about a model it has loaded and warmed up; all the gateway ever knows of it."""

    name: str
    version: str = "1"
    description: str = ""
    """What the class says of itself: the first paragraph of its docstring."""
    path: str | None = None
    deadline_s: float = 1.0
    key: str | None = None
    key_ignore: list[str] = []
    """Body fields that may differ between attempts of one request."""
    keep_inputs: bool = False
    """Whether the history keeps what is sent and answered, not only what became of it."""
    redact: list[str] = []
    """Fields that it leaves out of both."""
    has_redact: bool = False
    """Whether the class says itself what it keeps of a request: an understudy is asked."""
    keep_votes: float = 0.0
    """For which part of the requests the history asks what each member says by itself; 0 where there is none."""
    label_field: str | None = None
    user_field: str | None = None
    keep_s: float = 3600.0
    """How long a result is kept for retries."""
    cache: str | None = None
    """"content": requests without a key are known by their body."""
    body: Body = Body.JSON
    accepts: list[str] = []
    """Media types of a raw body, as far as the class says."""
    request_schema: dict[str, Any] | None = None
    methods: tuple[str, ...] = ("POST",)
    """What it is asked with at its own paths."""
    answer_schema: dict[str, Any] | None = None
    """Of the class's `Answer`, if it has one."""
    answer_example: Any = None
    """What the warm-up's body was answered, if that is JSON and short."""
    answer_media: str = ""
    """Its media type, as far as the warm-up run showed."""
    example: Any = None
    samples: list[Sample] = []
    backend: str = "python"
    engine: str = ""
    """What its ONNX files run on; empty if it has none."""
    members: int = 1
    member_names: list[str] = []
    combine: str | None = None
    has_fallback: bool = False
    size_field: str | None = None
    """The body field whose length is the size of a request."""
    has_size: bool = False
    """Whether the class has a `size` of its own, to be asked of an understudy."""
    has_fetch: bool = False
    """Whether the class has a `fetch`, which runs before a request waits for a slot."""
    fetched: bytes = b""
    """The example with what `fetch` gave for it, for workers that come later."""
    max_batch: int = 64
    batch_sizes: list[int] = []
    """The sizes its backend really runs, the others padded to the next one; empty if any."""
    is_parallel: bool = False
    """Whether slots may share one copy: the backend releases the interpreter lock and is thread-safe."""
    warm_up_s: float = 0.0
    """How long one lone item took at warm-up: the scheduler's first guess."""
    device: str = "cpu"
    """What it computes on: "cpu", "cuda:0" ..., or "host", the stand-in for a GPU."""
    depth: int = 1
    """Batches in flight per device: so many slots of its worker share one."""
    step_s: list[list[float]] = []
    """Per member, in the order they run: seconds of device time that each of `batch_sizes` took at warm-up."""
    grid_s: list[tuple[float, list[list[float]]]] = []
    """Where they depend on a request's size: by size what `step_s` says, for the first of `batch_sizes`."""
    together_s: list[float] = []
    """Seconds of all members at once, for the first of `batch_sizes`; a batch beyond them runs member by member."""
    made_on: str = ""
    """The device, what computes there, and its version: what was learned of its speed holds for these."""
    captured: str = ""
    """What its networks have captured on their device, in words; empty if nothing."""
    notes: list[str] = []
    """Sentences for people: why a network runs eagerly, or a size was left out."""
    inputs: list[Tensor] = []
    """What tensor protocols may send it: a file's inputs, a class's fields, or one input for a raw body."""
    outputs: list[Tensor] = []
    """What they get, as far as the warm-up run showed."""

    folder: str | None = None
    """The model's folder in a folder of models; its traffic is divided among its versions."""

    @property
    def is_handler(self) -> bool:
        """Whether it is the handler of a model archive."""
        return self.backend == "handler"

    @property
    def base(self) -> str:
        """The model's name; that of a version beside the main one is `<base>@<version>`."""
        return self.name.partition("@")[0]

    @property
    def version_path(self) -> str:
        """The route that answers for this version, whatever share of the requests it has."""
        return f"/predictions/{self.base}/{self.version}"

    @property
    def paths(self) -> list[str]:
        """The routes that answer for this model."""
        always = f"/predictions/{self.name}" if self.name == self.base else self.version_path
        return [self.path, always] if self.path and self.path != always else [always]


class Trace(msgspec.Struct, frozen=True, gc=False):
    """A request's place in a trace, by the W3C's Trace Context: ids in hexadecimal digits."""

    trace_id: str
    parent: str
    """The caller's span; empty if the trace begins here."""
    span: str
    """The request's own."""
    is_sampled: bool
    state: str = ""
    """What other vendors' tracers said on the way: `tracestate`, passed on as it came."""


class Question(msgspec.Struct, eq=False):
    """One question to a model, as the gateway took it from the wire."""

    id: str
    model: str
    body: bytes
    arrived: float
    deadline: float
    key: str | None = None
    size: float = 1.0
    priority: int = 0
    fingerprint: bytes = b""
    """Of the body, if there is a key: attempts of one request have the same."""
    wants_votes: bool = False
    """Whether the client asked what each member of the ensemble says by itself."""
    served: str = ""
    """The version that answers it, as workers know it; empty if the model has only one."""
    version: str = ""
    is_shadow: bool = False
    """Whether it is a copy whose answer is only compared: nobody waits for it."""
    client: str = ""
    """The name of the API key it came with."""
    address: str = ""
    """Where it came from, for the log."""
    hold: Any = None
    """The part of the gateway's memory that a large body takes; it is given back when nobody knows it any more."""
    trace: Trace | None = None
    """None for most: requests that were not chosen for a trace, and came without one."""
    follow: Callable[[Question, Result | list[Part]], None] | None = None
    """Told every better answer before the last, and every piece; for a client that asked for that."""


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """What a worker says of one item: an answer (`code` is empty) or that item's error."""

    body: bytes
    code: str = ""
    media: str = "application/json"
    headers: str = ""
    """More header lines, each ended by CRLF."""


UNFINISHED = "unfinished"
"""The code of an item that fewer members than all make no answer of, though more may: no client ever sees it."""


class Timing(msgspec.Struct, array_like=True, frozen=True):
    """Seconds a batch spent in each of a worker's stages."""

    prepare_s: float = 0.0
    infer_s: float = 0.0
    finish_s: float = 0.0
    members_s: tuple[float, ...] = ()
    """Of `infer_s`, what each member of an ensemble took, if they ran one after another."""
    beside_s: tuple[tuple[float, float], ...] = ()
    """If they ran side by side: when each began, from the first one's start, and how long it took."""


class Report(msgspec.Struct, array_like=True, frozen=True):
    """What a slot says of its batch: outcomes so far, and how long what took."""

    outcomes: list[Outcome]
    timing: Timing
    members: int
    of_members: int
    votes: dict[int, str] = {}
    """What each member says by itself, as JSON for a header, by the place of the items that asked for it."""
    is_note: bool = False
    """Only for the case that the next member takes too long: the slot goes on by itself."""
    is_short_of_memory: bool = False
    """Whether the batch was too large for the memory, and was computed in parts."""
    device_s: float = 0.0
    """Device time of the members that ran since the last report; 0 if unknown."""
    waited_s: float = 0.0
    """How long they waited for the device, behind another batch."""
    killers: dict[int, list[Loss]] = {}
    """Places of items that ended processes beside the worker, which prepared them, and how each ended."""


class Run(msgspec.Struct, frozen=True):
    """A batch as it was sent: where it ran, from when, why at this size, and what was expected of it."""

    id: int
    model: str
    """As workers know it: with the version, if it is not the main one."""
    slot: str
    size: int
    reason: str
    started: float
    """A point on the monotonic clock."""
    predicted_s: float
    """How long it should take, with all members."""
    latest_end: float
    """When it must be over for the first of its requests to be in time."""
    step: int = 0
    """The size it is run with: padded, if its backend runs some sizes only."""
    device_s: float = 0.0
    """How long its first `sure` members should take on a device; 0 on CPUs."""
    sure: int = 0


class Part(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One piece of an answer, as its model gave it: JSON, the JSON of a text, or bytes."""

    kind: str
    """"json", "text" or "bytes"."""
    data: bytes


class Measured(msgspec.Struct, array_like=True, frozen=True):
    """What a handler measured under one name since it was last asked: how often, the sum, the last value."""

    model: str
    name: str
    unit: str
    kind: str
    """`counter` if the values are to be summed up, else `value`."""
    count: int
    total: float
    last: float


class Result(msgspec.Struct, frozen=True):
    """The answer to a request and how it came about."""

    outcome: Outcome
    quality: Quality = Quality.FULL
    source: Source = Source.COMPUTED
    members: int = 1
    of_members: int = 1
    batch_size: int = 1
    queue_s: float = 0.0
    timing: Timing = Timing()
    votes: str = ""
    """What each member says by itself, as JSON for a header; empty unless somebody asked before it ran."""
    version: str = ""
    """Of the model that computed it."""
    run: Run | None = None
    """The batch that computed it."""
    reason: str = ""
    """Why it is less than the full answer."""


Deliver: TypeAlias = Callable[[Result | RequestError], None]
"""Called exactly once for every accepted request."""

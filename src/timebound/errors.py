"""The error tree. An error carries a stable code and the facts; `http/problems.py` turns codes into statuses.

TimeboundError
├── SetupError            a mistake found at start: one sentence with cause and cure, exit code 2
│   ├── MissingExtra      an optional library is not installed
│   └── NeedsProgram      a file is served by a program, which is given along
├── RequestError          one request cannot be answered; its neighbours are not touched
│   ├── BadInput          the client's input is wrong (raise it from `prepare`)
│   ├── KeyReused         the key stands for a request with another body
│   ├── ModelFailed       the user's code or the model raised
│   ├── CrashesWorker     it made workers die or hang, each time alone
│   ├── CopyLost          a shadow's copy, and its worker with it; no client sees this
│   ├── DeadlineMissed    the deadline came first and nothing better was there
│   ├── StoreUnavailable  what was asked needs the shared store, and it does not answer
│   └── Refusal           a "no" given at once, with a reason and, where it helps, a time to come back
├── DeviceLost            a device computes no more; its worker must end and be replaced
└── WireError             a frame between gateway and worker breaks the format
"""

from __future__ import annotations

from typing import Any


class TimeboundError(Exception):
    """Root of everything this package raises on purpose; its text may be shown to people."""


class SetupError(TimeboundError):
    """Something the operator must change before the server can run."""


class MissingExtra(SetupError):
    """A library that is needed here comes with an extra that is not installed."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed; install it with: pip install 'timebound[{extra}]'")


class NeedsProgram(SetupError):
    """A file cannot be served by itself; `program` is an app.py that serves it."""

    def __init__(self, sentence: str, program: str) -> None:
        super().__init__(sentence)
        self.program = program


class RequestError(TimeboundError):
    """Ends one request with a stable `code`; `field` names the part of the body at fault."""

    code = "internal"
    predicted_s: float | None = None
    """How long an answer would have taken from the moment of the decision, where that is why there is none."""
    run: Any = None
    """The batch that it was in when it was given up: a `Run`."""

    def __init__(self, detail: str, *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        if code is not None:
            self.code = code


class BadInput(RequestError):
    """This item's input is wrong: `raise tb.BadInput("not a PNG or JPEG", field="image")`."""

    code = "bad_input"


class KeyReused(RequestError):
    """The same key came with another body before."""

    code = "key_reused"

    def __init__(self) -> None:
        super().__init__(
            "this key was used with another body; a retry sends the same body, a new request needs a new key "
            "(fields that change between attempts belong in the model's key_ignore)"
        )


class ModelFailed(RequestError):
    """The model raised on this item."""

    code = "model_failed"


class CopyLost(RequestError):
    """A copy for a shadow version went down with its worker. Copies are not tried again."""

    def __init__(self) -> None:
        super().__init__("its worker was lost with it")


class CrashesWorker(RequestError):
    """Workers that computed this request alone died or hung."""

    code = "crashes_worker"


class DeadlineMissed(RequestError):
    """The deadline came before an answer did."""

    code = "deadline_missed"


class StoreUnavailable(RequestError):
    """Only the shared store could answer this, and it cannot be asked now."""

    code = "store_unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store cannot be asked now ({reason}); try again when /readyz says nothing of it")


class Refusal(RequestError):
    """A "no" given at once; `retry_after_s` is when asking again may help."""

    code = "refused"

    def __init__(self, detail: str, *, code: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail, code=code)
        self.retry_after_s = retry_after_s


class DeviceLost(TimeboundError):
    """A device failed in a way that lasts: whatever is asked of it in this process fails from now on."""


class WireError(TimeboundError):
    """A frame that does not follow `workers/wire.py`."""


def text_of(value: object) -> str:
    """Whatever was given for a text, as one that JSON can say; its kind if its own `__str__` fails."""
    try:
        return str(value).encode("utf-8", "replace").decode()
    except BaseException:  # it is the user's, and may do anything
        return type(value).__name__

"""What a client's call can end with instead of an answer. All are `tb.RequestError`s, as from `tb.Gateway`.

CallFailed               code, detail, field, status, retry_after, request_id, attempts
├── Unreachable          no server could be asked
├── WrongAnswer          an answer came, and it is not what `type=` says
├── DeadlineMissed       no answer before the deadline, by the server's clock (504) or by ours; a TimeoutError too
├── Busy                 not now: 429, 503 and what proxies say in their place; also a result that is still in work
├── BadRequest           the request is wrong: 400, 405, 408, 413, 415, 422, 431; a `tb.BadInput` too
├── NotAllowed           401, 403
├── NotFound             404: no such model, no such result
└── ModelFailed          500: the model raised, or its worker died of this request
"""

from __future__ import annotations

from timebound import errors


class CallFailed(errors.RequestError):
    """A call without an answer: `code` is stable (docs/behaviour.md lists the server's), `detail` is for people."""

    code = "unknown"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        field: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        errors.RequestError.__init__(self, detail, code=code, field=field)
        self.status = status
        """The HTTP status; None if no server answered."""
        self.retry_after = retry_after
        """Seconds after which asking again may help, if the server said so."""
        self.request_id = request_id
        """What the server's log calls the request."""
        self.attempts = 1
        """How often it was sent."""


class Unreachable(CallFailed):
    """No server could be asked, or none answered."""

    code = "unreachable"


class WrongAnswer(CallFailed):
    """The answer cannot be read as what `type=` says, or is no HTTP."""

    code = "wrong_answer"


class DeadlineMissed(CallFailed, errors.DeadlineMissed, TimeoutError):
    """The deadline came before an answer did."""

    code = "deadline_missed"


class Busy(CallFailed):
    """A server cannot do it now; `retry_after` says when to come back, where it is known."""

    code = "busy"


class BadRequest(CallFailed, errors.BadInput):
    """The request is wrong and will stay so; `field` names the part at fault where there is one."""

    code = "bad_input"


class NotAllowed(CallFailed):
    """The API key is not known here, or not for this."""

    code = "forbidden"


class NotFound(CallFailed):
    """There is no such model, or no such result."""

    code = "not_found"


class ModelFailed(CallFailed, errors.ModelFailed):
    """The model failed on this request."""

    code = "model_failed"


_BY_STATUS: dict[int, type[CallFailed]] = {
    202: Busy,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    429: Busy,
    502: Busy,
    503: Busy,
    504: DeadlineMissed,
}


def class_of(status: int) -> type[CallFailed]:
    """The error that stands for an HTTP status."""
    found = _BY_STATUS.get(status)
    if found is None:
        found = BadRequest if 400 <= status < 500 else ModelFailed if status >= 500 else WrongAnswer
    return found

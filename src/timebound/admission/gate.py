"""Is the model of this request there, and is the server staying?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from timebound.errors import Refusal, RequestError
from timebound.types import Deliver, ModelInfo, Request


class Gate:
    """Lets requests through to `submit`, or refuses them at once."""

    def __init__(self, submit: Callable[[Request, Deliver], Callable[[], None]]) -> None:
        self._submit = submit
        self._models: dict[str, ModelInfo] = {}
        self._gone: set[str] = set()
        self._is_draining = False

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """The models that have answered a warm-up run, by name."""
        return self._models

    def open_for(self, info: ModelInfo) -> None:
        """Let requests for this model in."""
        self._models[info.name] = info
        self._gone.discard(info.name)

    def close_for(self, name: str) -> None:
        """This model is no longer served."""
        self._models.pop(name, None)
        self._gone.add(name)

    def drain(self) -> None:
        """Let nobody in any more."""
        self._is_draining = True

    def why_not_ready(self) -> str | None:
        """Why no request would be let in, or None."""
        if self._is_draining:
            return "draining"
        return None if self._models else "loading"

    def admit(self, request: Request, deliver: Deliver) -> Callable[[], None]:
        """Accept a request: `deliver` is called once, with its result or error. Raises a `RequestError` that
        says why not, such as a `Refusal`.

        Call what is returned if the client leaves before that.
        """
        if self._is_draining:
            raise Refusal("the server is shutting down", code="draining", retry_after_s=1)
        if request.model in self._gone:
            raise RequestError(f"the model {request.model!r} is no longer served", code="unknown_model")
        return self._submit(request, deliver)

"""The usual health check of gRPC servers, for load balancers and Kubernetes; needs no API key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from timebound.errors import Refusal, RequestError
from timebound.rpc.calls import Reading, decoded, refuse, unary
from timebound.rpc.schema import message

NAME = "grpc.health.v1.Health"
_REQUEST = f"{NAME.rpartition('.')[0]}.HealthCheckRequest"
_Answer = message("grpc.health.v1.HealthCheckResponse")
SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3
_LOOKED_S = 0.5
"""How often those who watch are looked after."""
_MOST_WATCHERS = 256


class Health:
    """Serving is who is ready. `closing` is done when watchers are to go."""

    def __init__(
        self, is_ready: Callable[[], bool], services: Sequence[str], closing: asyncio.Future[None], reading: Reading
    ) -> None:
        self._is_ready = is_ready
        self._reading = reading
        self._services = {"", *services}
        self._closing = closing
        self._watchers = 0

    def methods(self) -> dict[str, Any]:
        """What to mount, by name."""
        return {
            "Check": unary(_REQUEST, None, self._check, self._reading),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }

    def _state(self, service: str) -> int:
        if service not in self._services:
            return UNKNOWN
        return SERVING if self._is_ready() else NOT_SERVING

    def _check(self, request: Any, caller: None) -> Any:
        state = self._state(request.service)
        if state == UNKNOWN:
            raise RequestError(f"there is no service {request.service[:200]!r}", code="not_found")
        return _Answer(status=state)

    async def _watch(self, unread: Any, context: Any) -> None:
        self._watchers += 1
        try:
            body, _ = await self._reading.read(context)
            service = decoded(message(_REQUEST), body).service
            if self._watchers > _MOST_WATCHERS:
                raise Refusal(f"{_MOST_WATCHERS} watch already", code="too_many_connections", retry_after_s=1)
            told = None
            while not self._closing.done():
                if (state := self._state(service)) != told:
                    await context.write(_Answer(status=state).SerializeToString())
                    told = state
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._closing), _LOOKED_S)
            if told == SERVING:
                await context.write(_Answer(status=self._state(service)).SerializeToString())
        except RequestError as error:
            await refuse(context, error)
        finally:
            self._watchers -= 1

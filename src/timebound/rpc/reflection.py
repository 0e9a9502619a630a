"""Tells what this server speaks, so that grpcurl and others need no files; needs no API key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from timebound.errors import RequestError
from timebound.rpc.calls import Reading, decoded, refuse
from timebound.rpc.schema import POOL, message
from timebound.rpc.statuses import status_of

VERSIONS = ("v1", "v1alpha")
_MOST_QUESTIONS = 1_000
"""On one stream."""


class Reflection:
    """One version of the service; they differ in nothing but their names."""

    def __init__(self, version: str, services: Sequence[str], reading: Reading) -> None:
        self.name = f"grpc.reflection.{version}.ServerReflection"
        self._services = services
        self._reading = reading
        self._request = message(f"grpc.reflection.{version}.ServerReflectionRequest")
        self._answer = message(f"grpc.reflection.{version}.ServerReflectionResponse")
        self._ways: dict[str, Callable[[Any, Any], None]] = {
            "list_services": self._list,
            "file_by_filename": self._by_name,
            "file_containing_symbol": self._by_symbol,
        }

    def methods(self) -> dict[str, Any]:
        """What to mount, by name."""
        return {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(self._talk)}

    async def _talk(self, unread: Any, context: Any) -> None:
        try:
            for _ in range(_MOST_QUESTIONS):
                body, _ = await self._reading.next(context)
                if body is None:
                    return
                await context.write(self._said(decoded(self._request, body)).SerializeToString())
            raise RequestError(f"a stream may ask {_MOST_QUESTIONS} questions", code="rate_limited")
        except RequestError as error:
            await refuse(context, error)

    def _said(self, request: Any) -> Any:
        answer = self._answer(valid_host=request.host, original_request=request)
        asked = request.WhichOneof("message_request") or ""
        try:
            if asked not in self._ways:
                raise RequestError("there are no extensions", code="method_not_allowed")
            self._ways[asked](request, answer)
        except KeyError:
            answer.error_response.error_code = status_of("not_found").value[0]
            answer.error_response.error_message = "there is nothing of this name"
        except RequestError as error:
            answer.error_response.error_code = status_of(error.code).value[0]
            answer.error_response.error_message = error.detail
        return answer

    def _list(self, request: Any, answer: Any) -> None:
        for name in self._services:
            answer.list_services_response.service.add(name=name)

    def _by_name(self, request: Any, answer: Any) -> None:
        file = POOL.FindFileByName(request.file_by_filename)
        answer.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)

    def _by_symbol(self, request: Any, answer: Any) -> None:
        symbol = request.file_containing_symbol
        try:
            file = POOL.FindFileContainingSymbol(symbol)
        except KeyError:  # a method, or a field: what it belongs to is known
            file = POOL.FindFileContainingSymbol(symbol.rpartition(".")[0])
        answer.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)

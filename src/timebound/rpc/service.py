"""The methods of GRPCInferenceService beside inference: health, what models take and give, statistics, loading."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import ParseDict

from timebound.http.described import Described
from timebound.rpc.callers import Caller, Callers
from timebound.rpc.calls import Reading, Work, unary
from timebound.rpc.schema import message
from timebound.types import ModelInfo

NAME = "inference.GRPCInferenceService"


def _answer(kind: str, said: dict[str, Any]) -> Any:
    return ParseDict(said, message(f"inference.{kind}Response")(), ignore_unknown_fields=True)


class Service:
    """Says by gRPC what `Described` knows."""

    def __init__(self, described: Described, callers: Callers, reading: Reading) -> None:
        self._described = described
        self._reading = reading
        self._callers = callers

    def methods(self) -> dict[str, Any]:
        """What to mount, by name."""
        open_to_all: dict[str, Work] = {"ServerLive": self._live, "ServerReady": self._ready}
        others: dict[str, Work] = {
            "ServerMetadata": self._server,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._metadata,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        called: list[tuple[str, Callers | None, Work]] = [(name, None, work) for name, work in open_to_all.items()]
        called += [(name, self._callers, work) for name, work in others.items()]
        return {name: unary(f"inference.{name}Request", callers, work, self._reading) for name, callers, work in called}

    def _live(self, request: Any, caller: Caller) -> Any:
        return _answer("ServerLive", {"live": True})

    def _ready(self, request: Any, caller: Caller) -> Any:
        return _answer("ServerReady", {"ready": self._described.is_ready})

    def _server(self, request: Any, caller: Caller) -> Any:
        return _answer("ServerMetadata", self._described.server())

    def _model_ready(self, request: Any, caller: Caller) -> Any:
        self._asked(request, caller)
        return _answer("ModelReady", {"ready": self._described.is_ready})

    def _metadata(self, request: Any, caller: Caller) -> Any:
        return _answer("ModelMetadata", self._described.metadata(self._asked(request, caller)))

    def _config(self, request: Any, caller: Caller) -> Any:
        return _answer("ModelConfig", {"config": self._described.config(self._asked(request, caller))})

    def _statistics(self, request: Any, caller: Caller) -> Any:
        models = [self._asked(request, caller)] if request.name else self._described.shown(caller.client)
        return _answer("ModelStatistics", {"model_stats": self._described.stats(models)})

    def _asked(self, request: Any, caller: Caller) -> ModelInfo:
        return self._described.find(caller.client, request.name, request.version or None)

    def _index(self, request: Any, caller: Caller) -> Any:
        is_operators = caller.is_operators or not self._callers.has_keys
        rows = self._described.index(caller.client, is_operators=is_operators, only_ready=request.ready)
        return _answer("RepositoryIndex", {"models": rows})

    async def _load(self, request: Any, caller: Caller) -> Any:
        self._callers.check_operator(caller)
        model = request.model_name or request.repository_name
        await self._described.load(model)
        return _answer("RepositoryModelLoad", {"model_name": model, "isLoaded": True})

    def _unload(self, request: Any, caller: Caller) -> Any:
        self._callers.check_operator(caller)
        model = request.model_name or request.repository_name
        self._described.unload(model)
        return _answer("RepositoryModelUnload", {"model_name": model, "isUnloaded": True})

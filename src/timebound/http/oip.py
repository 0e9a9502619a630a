"""The Open Inference Protocol beside inference: health, what models take and give, statistics, the repository."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from timebound.catalogue import Catalogue
from timebound.errors import Refusal, RequestError, SetupError
from timebound.http.access import Access
from timebound.http.admin import Admin
from timebound.http.responses import json_response
from timebound.types import ModelInfo, Tensor
from timebound.version import VERSION

EXTENSIONS = [
    "classification", "model_configuration", "model_repository", "parameters", "schedule_policy", "statistics",
    "binary_tensor_data",
]  # fmt: skip
UNSUPPORTED = ("classify", "regress", "explain")
"""What the first protocol has besides `predict`."""
_PLATFORMS = {"onnx": "onnxruntime_onnx", "torch": "pytorch_libtorch"}
_NS = 1e9
_UNLOADED = "unloaded"


class Repository(Protocol):
    """The gateway."""

    catalogue: Catalogue
    unloaded: dict[str, list[ModelInfo]]

    def why_not_ready(self) -> str | None: ...
    async def load_model(self, model: str) -> None: ...
    def unload_model(self, model: str) -> None: ...


class OpenInferenceRoutes:
    """What the protocol asks of a server besides inference."""

    def __init__(
        self,
        served: Repository,
        admin: Admin,
        access: Access | None,
        metrics: Callable[[], tuple[bytes, str]],
    ) -> None:
        self._served = served
        self._admin = admin
        self._access = access
        self._metrics = metrics

    def routes(self) -> list[Route]:
        """What to mount."""
        one = {
            "": self._metadata,
            "/ready": self._model_ready,
            "/config": self._config,
            "/stats": self._stats,
        }
        rows: list[tuple[str, Callable[[HttpRequest], Awaitable[Response]], list[str]]] = [
            ("/v2", self._server, ["GET"]),
            ("/v2/health/live", self._live, ["GET"]),
            ("/v2/health/ready", self._ready, ["GET"]),
            ("/ping", self._ready, ["GET"]),
            ("/v2/models/stats", self._all_stats, ["GET"]),
            ("/v2/repository/index", self._index, ["GET", "POST"]),
            ("/v2/repository/models/{model}/load", self._load, ["POST"]),
            ("/v2/repository/models/{model}/unload", self._unload, ["POST"]),
        ]
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            rows += [(model + end, handle, ["GET"]) for end, handle in one.items()]
            rows.append((f"{model}/infer", self._no_infer, ["POST"]))
            first = model.replace("v2", "v1")
            rows.append((f"{first}:predict", self._no_infer, ["POST"]))
            rows += [(f"{first}:{verb}", self._no_verb, ["GET", "POST"]) for verb in UNSUPPORTED]
            rows.append((first, self._v1_status, ["GET"]))
        return [Route(path + slash, handle, methods=methods) for path, handle, methods in rows for slash in ("", "/")]

    # ------------------------------------------------------------------ the server

    async def _server(self, request: HttpRequest) -> Response:
        return json_response({"name": "timebound", "version": VERSION, "extensions": EXTENSIONS})

    async def _live(self, request: HttpRequest) -> Response:
        return json_response({"live": True, "ready": self._served.why_not_ready() is None})

    async def _ready(self, request: HttpRequest) -> Response:
        is_ready = self._served.why_not_ready() is None
        return json_response({"live": True, "ready": is_ready}, 200 if is_ready else 503)

    # ------------------------------------------------------------------ models

    async def _metadata(self, request: HttpRequest) -> Response:
        info = self._asked(request)
        return json_response(
            {
                "name": info.base,
                "versions": self._versions(info.base),
                "platform": _PLATFORMS.get(info.backend, info.backend),
                "inputs": [_shown(tensor) for tensor in info.inputs],
                "outputs": [_shown(tensor) for tensor in info.outputs],
            }
        )

    async def _model_ready(self, request: HttpRequest) -> Response:
        info = self._asked(request)
        is_ready = self._served.why_not_ready() is None
        return json_response({"name": info.base, "ready": is_ready}, 200 if is_ready else 503)

    async def _v1_status(self, request: HttpRequest) -> Response:
        """As TensorFlow Serving and KServe's first protocol tell it."""
        info = self._asked(request)
        is_ready = self._served.why_not_ready() is None
        states = [
            {
                "version": version,
                "state": "AVAILABLE" if is_ready else "LOADING",
                "status": {"error_code": "OK", "error_message": ""},
            }
            for version in self._versions(info.base)
        ]
        told = {"name": info.base, "ready": is_ready, "model_version_status": states}
        return json_response(told, 200 if is_ready else 503)

    async def _config(self, request: HttpRequest) -> Response:
        info = self._asked(request)
        return json_response(
            {
                "name": info.base,
                "platform": _PLATFORMS.get(info.backend, info.backend),
                "backend": info.backend,
                "version_policy": {
                    "specific": {"versions": [int(v) for v in self._versions(info.base) if v.isdecimal()]}
                },
                "max_batch_size": info.max_batch,
                "input": [_configured(tensor) for tensor in info.inputs],
                "output": [_configured(tensor) for tensor in info.outputs],
                "dynamic_batching": {"max_queue_delay_microseconds": 0},
                "model_transaction_policy": {"decoupled": False},
            }
        )

    async def _stats(self, request: HttpRequest) -> Response:
        info = self._asked(request)
        return json_response({"model_stats": _stats([info], self._metrics()[0])})

    async def _all_stats(self, request: HttpRequest) -> Response:
        if "stats" in self._served.catalogue.models:  # a model that is called so
            request.path_params["model"] = "stats"
            return await self._metadata(request)
        return json_response({"model_stats": _stats(self._shown_models(request), self._metrics()[0])})

    async def _no_infer(self, request: HttpRequest) -> Response:
        """A POST that no model's own route took: for a model that is not there, or not for who asks."""
        self._asked(request)
        raise RequestError("send a POST", code="method_not_allowed")

    async def _no_verb(self, request: HttpRequest) -> Response:
        self._asked(request)
        path, _, verb = request.url.path.rstrip("/").rpartition(":")
        raise RequestError(f":{verb} is not supported; send a POST to {path}:predict", code="not_found")

    def _asked(self, request: HttpRequest) -> ModelInfo:
        """The model that a path names; who may not ask it is told the same as if there were none."""
        model, version = request.path_params["model"], request.path_params.get("version")
        found = [info for info in self._shown_models(request) if info.base == model]
        if version is not None and not (version == "0" and request.url.path.startswith("/v1/")):
            found = [info for info in found if info.version == version]
        if found:
            return min(found, key=lambda info: info.name != info.base)
        reason = self._served.why_not_ready()
        if reason == "loading":
            raise Refusal(f"the server is not ready: {reason}", code="not_ready", retry_after_s=1)
        which = f"'{model}'" if version is None else f"'{model}' version {version}"
        raise RequestError(f"Request for unknown model: {which} is not found", code="unknown_model")

    def _shown_models(self, request: HttpRequest) -> list[ModelInfo]:
        models = self._served.catalogue.models.values()
        return [info for info in models if self._access is None or self._access.shows(request.scope, info.base)]

    def _versions(self, base: str) -> list[str]:
        return [info.version for info in self._served.catalogue.models.values() if info.base == base]

    # ------------------------------------------------------------------ the repository

    async def _index(self, request: HttpRequest) -> Response:
        wants_ready = await _wants_ready(request)
        rows = [
            {"name": info.base, "version": info.version, "state": "READY", "reason": ""}
            for info in self._shown_models(request)
        ]
        if not wants_ready and (self._access is None or self._access.is_operators(request.scope)):
            rows += [
                {"name": info.base, "version": info.version, "state": "UNAVAILABLE", "reason": _UNLOADED}
                for infos in self._served.unloaded.values()
                for info in infos
            ]
        return json_response(rows)

    async def _load(self, request: HttpRequest) -> Response:
        self._admin.check(request)
        model = request.path_params["model"]
        try:
            await self._served.load_model(model)
        except SetupError as error:
            raise RequestError(f"failed to load '{model}': {error}", code="reload_failed") from None
        return json_response({})

    async def _unload(self, request: HttpRequest) -> Response:
        self._admin.check(request)
        model = request.path_params["model"]
        try:
            self._served.unload_model(model)
        except SetupError as error:
            raise RequestError(f"failed to unload '{model}': {error}", code="reload_failed") from None
        return json_response({})


_MOST_OF_INDEX = 1_024
"""Bytes; it has one word to say."""


async def _wants_ready(request: HttpRequest) -> bool:
    """Whether only models that are ready are asked for, in the body of an index request."""
    body = await request.body()
    if len(body) > _MOST_OF_INDEX:
        raise RequestError(f"the body is over {_MOST_OF_INDEX} bytes; all it may say is ready", code="body_too_large")
    try:
        asked = msgspec.json.decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="malformed_json") from None
    return isinstance(asked, dict) and asked.get("ready") is True


def _shown(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def _configured(tensor: Tensor) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    told: dict[str, Any] = {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": tensor.shape[1:] or [1]}
    if len(tensor.shape) == 1:
        told["reshape"] = {"shape": []}
    if tensor.is_optional:
        told["optional"] = True
    return told


def _stats(models: Sequence[ModelInfo], metrics: bytes) -> list[dict[str, Any]]:
    """What the metrics say of models, in the words of the statistics extension. Read from their text: it costs only
    those who ask."""
    sums: dict[tuple[str, str, bool], float] = {}
    for family in text_string_to_metric_families(metrics.decode()):
        for sample in family.samples:
            if "model" in sample.labels and "le" not in sample.labels:
                is_good = sample.labels.get("code", "ok") == "ok"
                key = sample.name.removeprefix("timebound_"), sample.labels["model"], is_good
                sums[key] = sums.get(key, 0.0) + sample.value
    return [
        _stats_of(info, lambda name, good=True, info=info: sums.get((name, info.base, good), 0.0)) for info in models
    ]


def _stats_of(info: ModelInfo, total: Callable[..., float]) -> dict[str, Any]:
    good, bad = total("requests_total"), total("requests_total", False)
    batches = total("batch_seconds_count")
    return {
        "name": info.base,
        "version": info.version,
        "inference_count": int(total("batch_size_sum")),
        "execution_count": int(total("batch_size_count")),
        "inference_stats": {
            "success": _counted(good, total("request_seconds_sum")),
            "fail": _counted(bad, 0.0),
            "queue": _counted(total("queue_seconds_count"), total("queue_seconds_sum")),
            "compute_input": _counted(batches, 0.0),
            "compute_infer": _counted(batches, total("batch_seconds_sum")),
            "compute_output": _counted(batches, 0.0),
        },
        "batch_stats": [],
    }


def _counted(count: float, seconds: float) -> dict[str, int]:
    return {"count": int(count), "ns": int(seconds * _NS)}

"""What the Open Inference Protocol tells of a server and its models, as plain data; the same over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from prometheus_client.parser import text_string_to_metric_families

from timebound.admission import Client
from timebound.catalogue import Catalogue
from timebound.errors import Refusal, RequestError, SetupError
from timebound.types import ModelInfo, Tensor
from timebound.version import VERSION

EXTENSIONS = [
    "classification", "model_configuration", "model_repository", "parameters", "schedule_policy", "statistics",
    "binary_tensor_data",
]  # fmt: skip
_PLATFORMS = {"onnx": "onnxruntime_onnx", "torch": "pytorch_libtorch"}
_MS, _NS = 1e3, 1e9
_UNLOADED = "unloaded"


class Repository(Protocol):
    """The gateway."""

    catalogue: Catalogue
    unloaded: dict[str, list[ModelInfo]]

    def why_not_ready(self) -> str | None: ...
    async def load_model(self, model: str) -> None: ...
    def unload_model(self, model: str) -> None: ...


class Described:
    """Looks models up for who asks: `client` is the holder of an API key, None for who may know of all models."""

    def __init__(self, served: Repository, metrics: Callable[[str], tuple[bytes, str]]) -> None:
        self._served = served
        self._metrics = metrics

    @property
    def is_ready(self) -> bool:
        """Whether the server is."""
        return self._served.why_not_ready() is None

    def server(self) -> dict[str, Any]:
        """Of the server."""
        return {"name": "timebound", "version": VERSION, "extensions": EXTENSIONS}

    def find(self, client: Client | None, model: str, version: str | None = None) -> ModelInfo:
        """A model, or one version of it; raises `RequestError`.

        Who may not ask a model is told the same whether there is one of this name or not.
        """
        if client is not None:
            client.check_model(model)
        found = [info for info in self._served.catalogue.models.values() if info.base == model]
        if version is not None:
            found = [info for info in found if info.version == version]
        if found:
            return min(found, key=lambda info: info.name != info.base)
        reason = self._served.why_not_ready()
        if reason == "loading":
            raise Refusal(f"the server is not ready: {reason}", code="not_ready", retry_after_s=1)
        which = f"'{model}'" if version is None else f"'{model}' version {version}"
        raise RequestError(f"Request for unknown model: {which} is not found", code="unknown_model")

    def shown(self, client: Client | None) -> list[ModelInfo]:
        """The models that who asks may know of."""
        models = self._served.catalogue.models.values()
        return [info for info in models if client is None or client.may_ask(info.base)]

    def versions(self, base: str) -> list[str]:
        """Those of a model."""
        return [info.version for info in self._served.catalogue.models.values() if info.base == base]

    def metadata(self, info: ModelInfo) -> dict[str, Any]:
        """What a model takes and gives."""
        return {
            "name": info.base,
            "versions": self.versions(info.base),
            "platform": _PLATFORMS.get(info.backend, info.backend),
            "inputs": [_shown(tensor) for tensor in info.inputs],
            "outputs": [_shown(tensor) for tensor in info.outputs],
        }

    def config(self, info: ModelInfo) -> dict[str, Any]:
        """As much of a model's configuration as clients need to make requests."""
        return {
            "name": info.base,
            "platform": _PLATFORMS.get(info.backend, info.backend),
            "backend": info.backend,
            "version_policy": {"specific": {"versions": [int(v) for v in self.versions(info.base) if v.isdecimal()]}},
            "max_batch_size": info.max_batch,
            "input": [_configured(tensor) for tensor in info.inputs],
            "output": [_configured(tensor) for tensor in info.outputs],
            "dynamic_batching": {"max_queue_delay_microseconds": 0},
            "model_transaction_policy": {"decoupled": False},
        }

    def stats(self, models: Sequence[ModelInfo]) -> list[dict[str, Any]]:
        """What was done for these models since the start."""
        return _stats(models, self._metrics("")[0])

    def index(self, client: Client | None, *, is_operators: bool, only_ready: bool) -> list[dict[str, Any]]:
        """The models there are; those that were unloaded are the operator's to know."""
        rows = [
            {"name": info.base, "version": info.version, "state": "READY", "reason": ""} for info in self.shown(client)
        ]
        if not only_ready and is_operators:
            rows += [
                {"name": info.base, "version": info.version, "state": "UNAVAILABLE", "reason": _UNLOADED}
                for infos in self._served.unloaded.values()
                for info in infos
            ]
        return rows

    async def load(self, model: str) -> None:
        """Serve a model as the target has it now; raises `RequestError`."""
        try:
            await self._served.load_model(model)
        except SetupError as error:
            raise RequestError(f"failed to load '{model}': {error}", code="reload_failed") from None

    def unload(self, model: str) -> None:
        """Serve a model no more until it is loaded again; raises `RequestError`."""
        try:
            self._served.unload_model(model)
        except SetupError as error:
            raise RequestError(f"failed to unload '{model}': {error}", code="reload_failed") from None


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
    sums: dict[tuple[str, str, str, str], float] = {}
    for family in text_string_to_metric_families(metrics.decode()):
        for sample in family.samples:
            labels = sample.labels
            if "model" in labels and "le" not in labels:
                kind = labels.get("stage") or ("ok" if labels.get("code", "ok") == "ok" else "failed")
                key = sample.name.removeprefix("timebound_"), labels["model"], labels.get("version", ""), kind
                sums[key] = sums.get(key, 0.0) + sample.value
    return [
        _stats_of(info, lambda name, kind="ok", i=info: sums.get((name, i.base, i.version, kind), 0.0))
        for info in models
    ]


def _stats_of(info: ModelInfo, total: Callable[..., float]) -> dict[str, Any]:
    """Of one version; requests that were refused before a version was chosen are none of its."""
    batches, failed_s = total("batch_seconds_count"), total("failed_seconds_total")
    compute = {
        name: _counted(batches, total("stage_seconds_total", stage))
        for name, stage in (("compute_input", "prepare"), ("compute_infer", "infer"), ("compute_output", "finish"))
    }
    return {
        "name": info.base,
        "version": info.version,
        "last_inference": int(total("last_batch_timestamp_seconds") * _MS),
        "inference_count": int(total("batch_size_sum")),
        "execution_count": int(total("batch_size_count")),
        "inference_stats": {
            "success": _counted(total("requests_total"), total("request_seconds_sum") - failed_s),
            "fail": _counted(total("requests_total", "failed"), failed_s),
            "queue": _counted(total("queue_seconds_count"), total("queue_seconds_sum")),
            **compute,
        },
        "batch_stats": [],
    }


def _counted(count: float, seconds: float) -> dict[str, int]:
    return {"count": int(count), "ns": max(0, int(seconds * _NS))}

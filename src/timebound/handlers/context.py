"""What a handler is given besides its data: the context, with each request's headers and each answer's status.

Names and behaviour are those of TorchServe's `ts.context` and of MMS before it; handlers rely on them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from timebound.handlers.measures import Measures
from timebound.version import VERSION


class Headers(dict[str, Any]):
    """Headers of a request or an answer, found however their names are written."""

    def get(self, name: Any, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or (isinstance(name, str) and self._own(name) is not None)

    def __missing__(self, name: str) -> Any:
        own = self._own(name)
        if own is None:
            raise KeyError(name)
        return self[own]

    def _own(self, name: str) -> str | None:
        lower = name.lower()
        return next((each for each in self if each.lower() == lower), None)


class RequestProcessor:
    """One request's headers, and the status and headers of its answer."""

    def __init__(self, headers: Mapping[str, Any]) -> None:
        self._request = Headers(headers)
        self.renew()

    def renew(self) -> None:
        """Forget what was said of the answer."""
        self._status = 200
        self._phrase: str | None = None
        self._response: dict[str, str] = {}

    def get_request_property(self, key: str) -> Any:
        return self._request.get(key)

    def get_request_properties(self) -> dict[str, Any]:
        return self._request

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        self._status, self._phrase = code, reason_phrase

    def get_response_status_code(self) -> int:
        return self._status

    def get_response_status_phrase(self) -> str | None:
        return self._phrase

    def add_response_property(self, key: str, value: str) -> None:
        self._response[key] = value

    def get_response_headers(self) -> dict[str, str]:
        return self._response

    def get_response_header(self, key: str) -> str | None:
        return self._response.get(key)


class Context:
    """The context of one model in one worker; handlers keep it and put things into it."""

    def __init__(
        self,
        *,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any],
        model_yaml_config: dict[str, Any],
        batch_size: int,
        gpu_id: int | None,
        metrics: Measures,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.model_yaml_config = model_yaml_config
        self.system_properties: dict[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": gpu_id,
            "batch_size": batch_size,
            "server_name": "timebound",
            "server_version": VERSION,
            "limit_max_image_pixels": True,
        }
        self.metrics = metrics
        self.request_ids: dict[int, str] | None = None
        self.request_processor: Sequence[RequestProcessor] | None = None
        self.stopping_criteria: Any = None
        self.cl_socket = None
        # What one may set to follow sequences; the names of the headers are looked up by handlers.
        self.header_key_sequence_id = os.environ.get("TS_REQUEST_SEQUENCE_ID", "ts_request_sequence_id")
        self.header_key_sequence_start = os.environ.get("TS_REQUEST_SEQUENCE_START", "ts_request_sequence_start")
        self.header_key_sequence_end = os.environ.get("TS_REQUEST_SEQUENCE_END", "ts_request_sequence_end")

    def begin(self, requests: Sequence[RequestProcessor], ids: Sequence[str]) -> None:
        """Be about these requests from now on."""
        self.request_processor = requests
        self.request_ids = dict(enumerate(ids))
        self.metrics.request_ids = self.request_ids

    def _of(self, idx: int) -> RequestProcessor:
        if self.request_processor is None:
            raise ValueError("there is no request while the model is loaded")
        return self.request_processor[idx]

    def get_request_id(self, idx: int = 0) -> str | None:
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        return self._of(idx).get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        return self._of(idx).get_request_properties()

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        return self.get_response_headers(idx).get("content-type")

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        request = self._of(idx)
        return request.get_response_status_code(), request.get_response_status_phrase()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        if self.request_processor is not None:
            self._of(idx).report_status(code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        for request in self.request_processor or ():
            request.report_status(code, phrase)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        return self._of(idx).get_response_headers()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self._of(idx).add_response_property(key, value)

    def get_sequence_id(self, idx: int) -> Any:
        return self.get_request_header(idx, self.header_key_sequence_id)


Entry = Callable[[Any, Context], Any]
"""A handler: a batch and the context, to one output for each request of the batch."""

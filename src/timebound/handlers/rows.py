"""A request's body as a handler gets it: `{"body": ...}`, or a form's fields by name; and an answer as bytes.

As TorchServe does it: JSON comes decoded, text as str, everything else as bytearray; a body whose JSON is broken comes
as it is. A field's value follows its own content type.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from typing import Any
from urllib.parse import parse_qsl

from timebound.errors import RequestError
from timebound.form import is_form, read_form
from timebound.handlers.context import RequestProcessor
from timebound.handlers.envelope import Asked, open_asked

_OWN = (b"timebound-timeout-ms", b":path")
_MOST_QUERY = 100


class Row:
    """One request of a batch."""

    __slots__ = ("data", "id", "is_enveloped", "request")

    def __init__(self, item: bytes | memoryview) -> None:
        asked, body = open_asked(item)
        self.is_enveloped = len(body) != len(item) and not asked.is_bare
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in asked.headers if name not in _OWN}
        self.id = headers.get("x-request-id") or str(uuid.uuid4())
        self.data, told = _read(asked, headers.get("content-type", ""), body)
        self.request = RequestProcessor({**told, **asked.more, **headers})


def _read(asked: Asked, media: str, body: memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a body, and what its context says of each."""
    data: dict[str, Any] = {}
    told: dict[str, Any] = {}
    if asked.query:
        for name, text in parse_qsl(asked.query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_QUERY):
            data[name], told[name] = bytearray(text.encode()), {"content-type": ""}
    kind = media.partition(";")[0].strip().lower()
    if is_form(media.encode("latin-1")):
        for field in read_form(media.encode("latin-1"), bytes(body)):
            # Only files say what they are; of other fields clients write anything.
            own = field.media.partition(";")[0].strip().lower() if field.filename is not None else ""
            data[field.name] = _value(own, field.value)
            told[field.name] = {"content-type": own}
    else:
        data["body"], told["body"] = _value(kind, body), {"content-type": kind}
    return data, told


def _value(kind: str, body: bytes | memoryview) -> Any:
    if os.environ.get("TS_DECODE_INPUT_REQUEST", "true") != "true":
        return bytearray(body)
    try:
        if kind == "application/json":
            return json.loads(bytes(body))
        if kind.startswith("text"):
            return str(body, "utf-8")
    except RecursionError:
        raise RequestError("the input is nested too deeply", code="bad_input") from None
    except ValueError:  # broken JSON and other texts come as they are
        pass
    return bytearray(body)


def answer_of(value: Any) -> tuple[bytes, str]:
    """An output as bytes, and its media type; raises `TypeError` or `ValueError` if it has no form."""
    if isinstance(value, bytes | bytearray):
        return bytes(value), "application/octet-stream"
    if isinstance(value, str):
        return value.encode(), "text/plain; charset=utf-8"
    if type(value).__module__ == "torch" and type(value).__name__ in ("Tensor", "Parameter"):
        import torch  # it is there: this is one of its own

        sink = io.BytesIO()
        torch.save(value, sink)
        return sink.getvalue(), "application/octet-stream"
    return json.dumps(value, indent=2).encode(), "application/json"

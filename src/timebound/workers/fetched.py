"""What `fetch` gives for a request, on its way to the worker that prepares it, and the request's own body with it.

size  4 bytes   of what was fetched, little endian
kind  1 byte    how that is to be read: 0 plain, 1 as the model's `Request`, 2 as `fetch` is annotated
what was fetched: msgpack, or JSON for a pydantic model
the body as it came
"""

from __future__ import annotations

import struct
from collections import ChainMap
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
import numpy as np

from timebound.clock import Clock
from timebound.model import Model
from timebound.request_type import is_pydantic, is_request_type, reader
from timebound.workers.runner import Runner

_HEAD = struct.Struct("<IB")
_ARRAY = 1
"""The code of a numpy array in msgpack: its dtype, its shape and its bytes."""

MOST_BYTES = 8 << 20
"""Of what one request may fetch."""


class Parcels:
    """Packs what one model's `fetch` gives, and unpacks it."""

    def __init__(self, cls: type[Model]) -> None:
        self._kinds = [cls.Request, _annotated(cls)]
        self._encode = msgspec.msgpack.Encoder(enc_hook=_encoded).encode
        self._decoders = [_decoder(kind) for kind in (None, *self._kinds)]

    def pack(self, fetched: Any, body: bytes) -> bytes:
        """Both in one; raises `ValueError` or `TypeError` for what cannot be handed over."""
        if fetched is None:
            raise TypeError("fetch() gave nothing; return the request that prepare() is to get")
        kind = next((place for place, each in enumerate(self._kinds, 1) if each and isinstance(fetched, each)), 0)
        is_json = kind and is_pydantic(type(fetched))
        packed = fetched.model_dump_json().encode() if is_json else self._encode(fetched)
        if len(packed) > MOST_BYTES:
            raise ValueError(f"fetch() gave {len(packed)} bytes; at most {MOST_BYTES} can be handed over")
        return _HEAD.pack(len(packed), kind) + packed + body

    def unpack(self, parcel: bytes | memoryview) -> Any:
        """What was fetched."""
        size, kind = _HEAD.unpack_from(parcel)
        return self._decoders[kind](memoryview(parcel)[_HEAD.size : _HEAD.size + size])


def body_of(parcel: bytes | memoryview) -> bytes | memoryview:
    """The body as it came."""
    return memoryview(parcel)[_HEAD.size + _HEAD.unpack_from(parcel)[0] :]


class FetchedRunner(Runner):
    """Runs batches of a model with a `fetch`: their bodies are parcels."""

    def __init__(self, model: Model, clock: Clock) -> None:
        super().__init__(model, clock)
        self._unpack = Parcels(type(model)).unpack

    def decode(self, body: bytes | memoryview) -> Any:
        return self._unpack(body)

    def encode(self, answer: Any, body: bytes | memoryview = b"") -> Any:
        return super().encode(answer, body_of(body) if body else body)


def _annotated(cls: type[Model]) -> type | None:
    """What `fetch` is annotated to give, if that is a type of the kinds that `Request` may be."""
    try:
        kind = get_type_hints(cls.fetch, localns=dict(ChainMap(*(dict(vars(base)) for base in cls.__mro__)))).get(
            "return"
        )
    except Exception:  # names that only a type checker knows
        return None
    return kind if is_request_type(kind) else None


def _decoder(kind: type | None) -> Callable[[Any], Any]:
    if kind is None:
        return msgspec.msgpack.Decoder(ext_hook=_decoded).decode
    return reader(kind) if is_pydantic(kind) else msgspec.msgpack.Decoder(kind, ext_hook=_decoded).decode


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        facts = (value.dtype.str, value.shape, value.tobytes())
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(facts))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"fetch() gave a {type(value).__name__}, which cannot be handed to another process; "
        "give plain values, bytes, arrays or a Struct of them"
    )


def _decoded(code: int, data: memoryview) -> Any:
    if code != _ARRAY:
        raise ValueError(f"an extension of msgpack with code {code}")
    dtype, shape, numbers = msgspec.msgpack.decode(data)
    return np.frombuffer(numbers, np.dtype(dtype)).reshape(shape)

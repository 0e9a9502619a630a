"""The datatypes of the Open Inference Protocol."""

from __future__ import annotations

from struct import calcsize

BYTES = "BYTES"
"""Elements of any length, each with its length before it: four bytes, little endian."""

FORMATS = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "BF16": "H",
    "FP32": "f",
    "FP64": "d",
}
"""Those whose elements have one size, by what `struct` calls them; BF16 is the upper half of an FP32."""

SIZES = {name: calcsize(f"<{letter}") for name, letter in FORMATS.items()}
"""Bytes of one element."""

DTYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
"""What numpy calls them; it has no BF16."""

_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}


def of_dtype(dtype: str) -> str:
    """The datatype of a numpy dtype, by its name; what is no number travels as BYTES."""
    return _DATATYPES.get(dtype, BYTES)

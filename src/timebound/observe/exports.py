"""The files in which a history is taken away: CSV, NDJSON and Parquet, written piece by piece."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec

from timebound.errors import MissingExtra
from timebound.observe.ledger import OUTCOMES

Rows = Iterator[dict[str, Any]]

_EXPORTED = (*OUTCOMES, "verdict", "right_label")


def _csv(rows: Rows) -> Iterator[bytes]:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _EXPORTED)
    writer.writeheader()
    for row in rows:
        writer.writerow(row)
        if buffer.tell() > 65_536:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue().encode()


def _ndjson(rows: Rows) -> Iterator[bytes]:
    for row in rows:
        yield msgspec.json.encode(row) + b"\n"


def _parquet(rows: Rows) -> Iterator[bytes]:
    try:
        import pyarrow as arrow  # heavy, and only for this
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet") from None
    schema = arrow.schema([(name, getattr(arrow, _KINDS.get(name, "string"))()) for name in _EXPORTED])
    with tempfile.TemporaryFile() as file:
        with parquet.ParquetWriter(file, schema) as writer:
            while part := list(islice(rows, 10_000)):
                writer.write_table(arrow.Table.from_pylist(part, schema))
        file.seek(0)
        while data := file.read(65_536):
            yield data


_KINDS = {
    **dict.fromkeys(("at", "ms", "limit_ms", "queue_ms", "prepare_ms", "infer_ms", "finish_ms"), "float64"),
    **dict.fromkeys(("predicted_ms", "confidence"), "float64"),
    **dict.fromkeys(("status", "members", "of_members", "batch", "size", "disagreed"), "int64"),
}
"""Columns of a Parquet file that are no texts."""

WRITERS: dict[str, Callable[[Rows], Iterator[bytes]]] = {"csv": _csv, "ndjson": _ndjson, "parquet": _parquet}
FORMATS = {"csv": "text/csv", "ndjson": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}
"""Their media types."""

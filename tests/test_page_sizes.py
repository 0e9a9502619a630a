"""The pages stay light: what a browser fetches for them, Swagger UI aside."""

from __future__ import annotations

import gzip
from pathlib import Path

import timebound

UI = Path(timebound.__file__).parent / "ui"
MOST = 90_000
"""Bytes, packed."""


def test_scripts_and_styles_of_all_pages_together_are_within_90_kb() -> None:
    files = [file for file in UI.rglob("*") if file.suffix in (".js", ".css") and "swagger-ui" not in file.parts]
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= MOST


def test_pages_load_nothing_from_elsewhere() -> None:
    for page in UI.glob("*.html"):
        assert "//" not in page.read_text().replace("<!doctype html>", "")

"""Packs the handlers of `tests/models/handlers` as their authors would: with torch-model-archiver, or MMS's tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

HANDLERS = Path(__file__).parent / "handlers"
_PACK = "from model_archiver.model_packaging import generate_model_archive; generate_model_archive()"


def pack(folder: Path, name: str, *arguments: str | Path, tool: Path | None = None) -> Path:
    """Run the tool; the archive it made in `folder`. `tool` is where another tool than the installed one lies."""
    environment = {**os.environ, "TMPDIR": str(folder)}  # it gathers its files in a folder of a fixed name there
    if tool is not None:
        environment["PYTHONPATH"] = str(tool)
    command = [sys.executable, "-c", _PACK, "--model-name", name, "--export-path", folder, *arguments, "-f"]
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=60)
    return next(folder.glob(f"{name}*.mar"), folder / name)


def digits(folder: Path, *more: str) -> Path:
    """The image classifier, version 2.0, with weights of its own."""
    weights = np.random.default_rng(7).normal(size=(64, 10)).astype(np.float32)
    np.savez(folder / "weights.npz", weights=weights)
    names = folder / "index_to_name.json"
    names.write_text(json.dumps({str(number): f"digit {number}" for number in range(10)}))
    handler = HANDLERS / "digits" / "digits_handler.py"
    return pack(
        folder, "digits", "--version", "2.0", "--handler", handler, "--serialized-file", folder / "weights.npz",
        "--extra-files", names, *more,
    )  # fmt: skip


def mood(folder: Path) -> Path:
    """The text classifier, packed by the same tool."""
    source = HANDLERS / "mood"
    return pack(
        folder, "mood", "--version", "1.0", "--handler", source / "model_service.py", "--extra-files",
        source / "words.json",
    )  # fmt: skip


def custom(folder: Path, version: str = "1.0") -> Path:
    """The handler whose function has a name of its own."""
    source = HANDLERS / "custom"
    # The tool copies `handler.py` and keeps `:entry` for the manifest.
    return pack(
        folder, "custom", "--version", version, "--handler", f"{source / 'handler'}:entry", "--extra-files",
        source / "fallback.py", "--config-file", source / "model-config.yaml",
    )  # fmt: skip

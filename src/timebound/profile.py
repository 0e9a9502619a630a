"""What was learned about a model's speed, kept in a small file so that a restart does not begin from nothing."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import msgspec

log = logging.getLogger("timebound.profile")

_VERSION = 1


class ProfileFile:
    """One JSON file per served target; a missing or broken one only means learning again."""

    def __init__(self, folder: Path, target: Path) -> None:
        digest = hashlib.sha256(str(target).encode()).hexdigest()[:12]
        self._path = folder / f"{target.stem}-{digest}.json"

    def read(self) -> dict[str, Any]:
        """The profiles by model; empty if there are none that can be used."""
        try:
            saved = msgspec.json.decode(self._path.read_bytes())
            return dict(saved["models"]) if saved["version"] == _VERSION else {}
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            log.warning(
                "cannot use the saved profile; learning again", extra={"file": str(self._path), "why": str(error)}
            )
            return {}

    def write(self, models: dict[str, Any]) -> None:
        """Replace the file in one step; a disk that cannot be written to is logged and hurts nothing."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_suffix(f".{os.getpid()}.new")
            fresh.write_bytes(msgspec.json.encode({"version": _VERSION, "models": models}))
            fresh.replace(self._path)
        except OSError as error:
            log.warning("cannot save the profile", extra={"file": str(self._path), "why": str(error)})

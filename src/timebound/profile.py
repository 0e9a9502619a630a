"""What was learned about a model's speed, kept in a small file so that a restart does not begin from nothing."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec

from timebound.errors import SetupError
from timebound.machine.cores import cores
from timebound.machine.processor import model_name

log = logging.getLogger("timebound.profile")

_VERSION = 2
_FARTHEST_DRIFT = math.log(100.0)  # from what is usual: no machine is so much slower or faster for long

_Positive = Annotated[float, msgspec.Meta(gt=0.0, lt=1e12)]
_Seconds = Annotated[float, msgspec.Meta(ge=1e-9, le=1e5)]
_Log = Annotated[float, msgspec.Meta(ge=-100.0, le=100.0)]


class Machine(msgspec.Struct, frozen=True):
    """What a profile was learned on: nothing of it is known of profiles of earlier days."""

    processor: str = ""
    cores: int = 0
    slots: int = 0
    gpus: int = 0
    """Devices that the slots shared; 0 where each slot was a server of its own."""


class _Speed(msgspec.Struct, frozen=True):
    """What must hold of a model's speed, or it cannot have been measured."""

    cells: list[tuple[_Positive, _Positive, _Positive, _Seconds]]
    scale: Annotated[list[_Log], msgspec.Meta(min_length=1)]
    crowd: dict[int, _Log]
    largest: tuple[_Positive, _Positive]
    quantiles: tuple[_Positive, _Positive]

    def __post_init__(self) -> None:
        if abs(self.scale[0]) > _FARTHEST_DRIFT:
            raise ValueError(f"a drift of {self.scale[0]:g}, more than {_FARTHEST_DRIFT:.1f}")
        for part in self.scale:
            if not all(1e-9 <= seconds * math.exp(part) <= 1e5 for *_, seconds in self.cells):
                raise ValueError("batches of less than 1e-9 s, or of more than 1e5 s")


class Saved(msgspec.Struct, frozen=True):
    """A profile as it lies in a file: by model what was learned, and where."""

    version: int
    models: dict[str, dict[str, Any]]
    machine: Machine = Machine()


def this_machine(slots: int, gpus: int = 0) -> Machine:
    """The machine that this runs on, serving so many batches at once, on so many devices."""
    return Machine(model_name(), cores(), slots, gpus)


class ProfileFile:
    """One JSON file per served target; a missing or broken one only means learning again."""

    def __init__(self, folder: Path, target: Path) -> None:
        digest = hashlib.sha256(str(target).encode()).hexdigest()[:12]
        self.path = folder / f"{target.stem}-{digest}.json"

    def read(self) -> dict[str, Any]:
        """The profiles by model; empty if there are none that can be used."""
        if not self.path.exists():
            return {}
        try:
            return read_saved(self.path).models
        except SetupError as error:
            log.warning("cannot use the saved profile; learning again", extra={"why": str(error)})
            return {}

    def write(self, models: dict[str, Any], machine: Machine) -> None:
        """Replace the file in one step; a disk that cannot be written to is logged and hurts nothing."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(f".{os.getpid()}.new")
            fresh.write_bytes(msgspec.json.encode(Saved(_VERSION, models, machine)))
            fresh.replace(self.path)
        except OSError as error:
            log.warning("cannot save the profile", extra={"file": str(self.path), "why": str(error)})


def _as_now(version: int, models: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What was saved, as it would be saved now; in version 1 lengths were counted in steps of another width."""
    if version == 1:
        return {
            name: {key: value for key, value in model.items() if key != "lengths"} for name, model in models.items()
        }
    return dict(models) if version == _VERSION else {}


def _believable(path: Path, models: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those whose figures can be true; a server believes what it is given for long, so the others learn anew."""
    believed = {}
    for name, learned in models.items():
        try:
            if learned.get("cells"):
                msgspec.convert(learned, _Speed, strict=False)
            believed[name] = learned
        except msgspec.ValidationError as error:
            extra = {"model": name, "file": str(path), "why": str(error)}
            log.warning("a saved profile cannot be true; the model is learned anew", extra=extra)
    return believed


def read_saved(path: Path) -> Saved:
    """A profile with all that is known of it; raises `SetupError` if there is none to be read."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    except OSError as error:
        raise SetupError(f"there is no profile at {path}: {error.strerror}; `timebound tune` measures one") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} is no profile: {error}; `timebound tune` measures one") from None
    return msgspec.structs.replace(saved, models=_believable(path, _as_now(saved.version, saved.models)))

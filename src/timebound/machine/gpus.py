"""Which GPUs this process and its children may use; found out without CUDA, which would set itself up in here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from timebound.errors import SetupError

VARIABLE = "CUDA_VISIBLE_DEVICES"
_ROOT = Path("/")
_FILE = re.compile(r"nvidia\d+")


def gpus(environment: Mapping[str, str], root: Path = _ROOT) -> list[str]:
    """What to call them in `CUDA_VISIBLE_DEVICES`, in order; those that this variable leaves, if it is set."""
    there = [str(number) for number in range(_count(root))]
    if VARIABLE not in environment:
        return there
    named: list[str] = []
    for name in map(str.strip, environment[VARIABLE].split(",")):
        if not name or name.startswith("-"):  # CUDA, too, reads no further
            break
        named.append(name)
    return named if there else []


def _count(root: Path) -> int:
    """Files of devices: in a container there are only those that it was given. The driver's list may be longer."""
    dev, listed = root / "dev", root / "proc/driver/nvidia/gpus"
    files = sum(bool(_FILE.fullmatch(file.name)) for file in dev.iterdir()) if dev.is_dir() else 0
    return files or (len(list(listed.iterdir())) if listed.is_dir() else 0)


def chosen(device: str, there: list[str]) -> list[str]:
    """Those that workers may use with the option `device`; raises `SetupError` if it names one that is not there."""
    kind, _, number = device.partition(":")
    if kind in ("cpu", "host"):
        return []
    if kind == "cuda" and not there:
        raise SetupError(f"--device {device}: there is no GPU here; use --device cpu, or install NVIDIA's driver")
    if number:
        if int(number) >= len(there):
            raise SetupError(f"--device {device}: there are {len(there)} GPUs here, counted from cuda:0")
        return [there[int(number)]]
    return there


def visible(there: list[str], place: int) -> str:
    """The variable for the worker at this place: its own GPU first, which is `cuda` to it, then the others."""
    turn = place % len(there)
    return ",".join(there[turn:] + there[:turn])


def index_of(name: str) -> int | None:
    """The number of a GPU that is called by its number."""
    return int(name) if name.isdecimal() else None

"""Machine types and their prices: read from an editable TOML file or from flags."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from timebound.errors import SetupError

EXAMPLES = Path(__file__).parent / "machines.toml"
HOURS_PER_MONTH = 730.0
_PRICE = re.compile(r"\s*[^\w\s.]?\s*([0-9]+(?:\.[0-9]+)?)\s*[^\w\s./]?\s*(?:/\s*(month|mo|hour|h))?\s*")
_FIELDS = ("cores", "price", "speed", "gpus")


class MachineType(msgspec.Struct, frozen=True):
    """One kind of machine to rent; `speed` is that of a core, or of a GPU if the profile was measured on one."""

    name: str
    cores: int
    price: float
    """Per month, in whatever currency it was written."""
    speed: float = 1.0
    """Relative to the machine of the profile."""
    gpus: int = 0


def read_price(text: str) -> float:
    """A price per month, from texts such as `5/month`, `0.01/hour` or `5`; raises `SetupError`."""
    match = _PRICE.fullmatch(text)
    if match is None:
        raise SetupError(f"{text!r} is no price; write for example 5/month or 0.01/hour")
    amount, per = match.groups()
    return float(amount) * (HOURS_PER_MONTH if per in ("hour", "h") else 1.0)


def read_machines(file: Path) -> list[MachineType]:
    """The machine types in a file, in its order; raises `SetupError` naming the one that is wrong."""
    try:
        table = tomllib.loads(file.read_text())
    except OSError as error:
        raise SetupError(f"cannot read {file}: {error.strerror}; `--print-machines` writes one to begin with") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} is not valid TOML: {error}") from None
    if not table:
        raise SetupError(f"{file} has no machine type; `--print-machines` writes some to begin with")
    return [_read(name, fields, file) for name, fields in table.items()]


def _read(name: str, fields: Any, file: Path) -> MachineType:
    where = f"{file}: [{name}]"
    if not isinstance(fields, Mapping):
        raise SetupError(f"{file}: {name!r} is no table; write [{name}] with cores and price below it")
    for field in fields:
        if field not in _FIELDS:
            raise SetupError(f"{where} has an unknown field {field!r}; known are {', '.join(_FIELDS)}")
    for field in ("cores", "price"):
        if field not in fields:
            raise SetupError(f"{where} has no {field}; add one")
    cores, speed, gpus = fields["cores"], fields.get("speed", 1.0), fields.get("gpus", 0)
    if not isinstance(gpus, int) or gpus < 0:
        raise SetupError(f"{where}: gpus is {gpus!r}; give a whole number")
    if not isinstance(cores, int) or cores < 1:
        raise SetupError(f"{where}: cores is {cores!r}; give a whole number from 1 on")
    if not isinstance(speed, int | float) or speed <= 0:
        raise SetupError(f"{where}: speed is {speed!r}; give a number above 0, such as 0.8")
    return MachineType(name, cores, read_price(str(fields["price"])), float(speed), gpus)

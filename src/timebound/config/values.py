"""How the value of an option is written, and what it is then."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

from timebound.types import CHANNELS_LAST, COMPILE, DTYPES, ENGINES, OWN, STORES, is_mode

_TIMES = {"ms": 0.001, "s": 1, "": 1, "min": 60}
_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*([A-Za-z]*)\s*")
_TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Form(NamedTuple):
    """How a value is made of what was written, what to say it must be, and which values are that."""

    make: Callable[[Any], Any]
    wanted: str
    is_right: Callable[[Any], object] = lambda value: True

    def read(self, written: Any) -> Any:
        """The value; raises `ValueError`, `KeyError`, `AttributeError` or `TypeError` if it is none."""
        value = self.make(written)
        if not self.is_right(value):
            raise ValueError(written)
        return value


def whole(low: int, high: int) -> Form:
    """A whole number between `low` and `high`."""
    wanted = f"a whole number from {low} to {high}"
    return Form(lambda value: int(str(value)), wanted, lambda number: low <= number <= high)


def seconds(low: float, high: float) -> Form:
    """A length of time in seconds, or with a unit: 1.5, "250ms", "2s", "1min"."""
    wanted = f'seconds from {low:g} to {high:g}, or a text such as "250ms"'
    return Form(lambda value: _in_units(value, _TIMES), wanted, lambda length: low <= length <= high)


def share(low: float, high: float) -> Form:
    """A number from `low` to `high`."""
    return Form(lambda value: float(str(value)), f"a number from {low:g} to {high:g}", lambda part: low <= part <= high)


def one_of(*choices: str) -> Form:
    """One of a few words."""
    return Form(str, f"one of {', '.join(choices)}", lambda word: word in choices)


def _in_units(value: Any, units: Mapping[str, float]) -> float:
    number, unit = _NUMBER_AND_UNIT.fullmatch(str(value)).groups()  # type: ignore[union-attr]
    return float(number) * (units.get(unit) or units[unit.upper()])


def _is_store(value: str) -> bool:
    word, separator, _ = value.partition("://")
    return word in STORES and not (word in ("memory", "none") and separator)


def _listed(value: Any) -> str:
    return ",".join(str(each).strip() for each in (value if isinstance(value, list) else str(value).split(",")))


def _are_origins(value: str) -> bool:
    return all(re.fullmatch(r"\*|https?://[^/\s*]+", each.rstrip("/")) for each in value.split(","))


def _are_proxies(value: str) -> bool:
    return all(each == "unix" or ip_network(each, strict=False) for each in value.split(","))


def _are_addresses(value: str) -> bool:
    return all(each.rpartition(":")[0] and 0 <= int(each.rpartition(":")[2]) <= 65535 for each in value.split(","))


def _is_loopback(value: str) -> bool:
    host = value.rpartition(":")[0].strip("[]")
    return _are_addresses(value) and (host == "localhost" or ip_address(host).is_loopback)


def _read_engine(value: Any) -> str:
    return _read_by_model(value, ENGINES.__contains__)


def _read_mode(value: Any) -> str:
    return _read_by_model(value, is_mode)


def _read_by_model(value: Any, is_known: Callable[[str], bool]) -> str:
    """One choice for all models, `model=choice` for single ones, or both: "openvino-f32,digits=openvino-bf16"."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        pairs = [(name, chosen) for name, _, chosen in (part.strip().rpartition("=") for part in value.split(","))]
    named = {str(name).strip(): str(chosen).strip() for name, chosen in pairs}
    if len(named) != len(pairs) or not named or not all(map(is_known, named.values())):
        raise ValueError
    return ",".join(f"{name}={chosen}" if name else chosen for name, chosen in named.items())


_A_DEVICE = r"auto|cpu|host|cuda(:[0-9]{1,3})?"
SIZE = Form(
    lambda value: int(_in_units(value, _SIZES)),
    'a size above zero, such as 1000000, "10MB" or "512KiB"',
    lambda count: count > 0,
)
TRUTH = Form(lambda value: _TRUTHS[str(value).lower()], "true or false")
TEXT = Form(lambda value: value, "a text", lambda value: isinstance(value, str) and value)
NAME = Form(lambda value: value, "letters, digits, '.', '_' or '-'", re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch)
ORIGINS = Form(_listed, "origins such as https://example.org, separated by commas, or *", _are_origins)
PROXIES = Form(_listed, "addresses or networks such as 10.0.0.0/8, separated by commas, or unix", _are_proxies)
ADDRESSES = Form(_listed, "host:port, several separated by commas, such as 127.0.0.1:8081", _are_addresses)
LOOPBACK = Form(str, "a loopback address with its port, such as 127.0.0.1:8081", _is_loopback)
WEB = Form(str, "a URL such as http://127.0.0.1:4318", re.compile(r"https?://[^/\s]+\S*").fullmatch)
PAIRS = Form(_listed, "name=value, several separated by commas", re.compile(r"[\w-]+=[^,]+(,[\w-]+=[^,]+)*").fullmatch)
STORE = Form(str, "memory, none, or a URL such as redis://127.0.0.1:6379/0", _is_store)
DEVICE = Form(str, "one of auto, cpu, cuda, cuda:1 (or another number), host", re.compile(_A_DEVICE).fullmatch)
ENGINE = Form(_read_engine, f"one of {', '.join(ENGINES)}, or model=engine,...")
MODE = Form(
    _read_mode,
    f"{OWN}, or some of {', '.join(DTYPES)}, {CHANNELS_LAST}, {COMPILE} joined by +, such as bfloat16+compile, "
    "or model=such a choice,...",
)

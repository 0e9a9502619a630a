"""What the system says of the processor; nothing where it does not say."""

from __future__ import annotations

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Any of these flags: products of bf16 numbers are computed by instructions of their own (the last is Arm's)."""


def _line(names: tuple[str, ...], cpuinfo: Path) -> str:
    """What follows the first of these names."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.lower().startswith(names)), "")


def model_name() -> str:
    """As people call it."""
    return _line(("model name",), _CPUINFO) or platform.machine()


def flags(cpuinfo: Path = _CPUINFO) -> set[str]:
    """What it can do."""
    return set(_line(("flags", "features"), cpuinfo).split())


def has_bf16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether it has instructions for bf16."""
    return not flags(cpuinfo).isdisjoint(BF16)

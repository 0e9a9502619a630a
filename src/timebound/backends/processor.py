"""What the processor can do that an engine may ask for."""

from __future__ import annotations

from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Any of these flags: products of bf16 numbers are computed by instructions of their own (the last is Arm's)."""


def has_bf16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether the processor has instructions for bf16; False where that cannot be found out."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}
    return not flags.isdisjoint(BF16)

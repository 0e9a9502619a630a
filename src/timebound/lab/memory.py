"""How much memory each member of an ensemble takes: what the process has less when the member is dropped."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Any

from timebound.lab.load.processes import pss_mib


def drop_members(net: Any) -> dict[str, float]:
    """MiB by member, in turn; empty for what is no ensemble of several. The network cannot run afterwards.

    Not what loading adds: a library's first network brings its threads and buffers along, and loading needs more than
    stays.
    """
    members = list(getattr(net, "members", ()))
    if len(members) < 2:
        return {}
    taken, before = {}, _settled_mib()
    for name, member in zip(net.names, members, strict=True):
        vars(member).clear()
        after = _settled_mib()
        taken[name] = max(0.0, before - after)
        before = after
    return taken


def _settled_mib() -> float:
    """Memory of this process without what is free already but still held."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
    return pss_mib(os.getpid())

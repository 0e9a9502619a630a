"""Networks compiled by torch: kernels of their own for each batch size."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_KERNELS = "TORCHINDUCTOR_CACHE_DIR"
_FOLDER = Path("~/.cache/timebound/kernels")
_MOST_VARIANTS = 256
"""Members of an ensemble share their code: each of them, at each size, may count as a variant of it."""


def compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same network, compiled when it first meets a batch; what was compiled is kept on disk for the next start."""
    os.environ.setdefault(_KERNELS, str(_FOLDER.expanduser()))
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _MOST_VARIANTS)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 4 * _MOST_VARIANTS)
    # Kernels for any size are slower, and take longer to compile than those for a few sizes.
    run: Callable[..., Any] = torch.compile(call, dynamic=False)
    return run


def compiles() -> int:
    """How many graphs torch has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # who compiles nothing has not loaded it
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0

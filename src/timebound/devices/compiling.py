"""Networks compiled by torch: kernels of their own, one set for all batch sizes and one for single items."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_KERNELS = "TORCHINDUCTOR_CACHE_DIR"
_FOLDER = Path("~/.cache/timebound/kernels")
_MOST_VARIANTS = 256
"""Members of an ensemble share their code, and each of them counts as a variant of it."""


def compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same network, compiled when it first meets a batch; what was compiled is kept on disk for the next start."""
    os.environ.setdefault(_KERNELS, str(_FOLDER.expanduser()))
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_VARIANTS)
    run = torch.compile(call)

    def forward(*arguments: Any, **by_name: Any) -> Any:
        for tensor in (*arguments, *by_name.values()):
            if tensor.dim() and len(tensor) > 1:  # of a single item the compiler makes use
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return run(*arguments, **by_name)

    return forward

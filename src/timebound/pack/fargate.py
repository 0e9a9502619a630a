"""The pairs of processors and memory that AWS Fargate has."""

from __future__ import annotations

from timebound.errors import SetupError

# By units of CPU (1024 are a core): the least memory in MiB, the most, and the steps between.
_PAIRS = {
    1024: (2048, 8192, 1024),
    2048: (4096, 16384, 1024),
    4096: (8192, 30720, 1024),
    8192: (16384, 61440, 4096),
    16384: (32768, 122880, 8192),
}


def pair(cores: int, memory_mb: int) -> tuple[int, int]:
    """The smallest that has as many cores and as much memory; raises `SetupError` if there is none."""
    for cpu, (least, most, step) in _PAIRS.items():
        if cpu >= 1024 * cores and memory_mb <= most:
            return cpu, least + max(0, -(-(memory_mb - least) // step)) * step
    raise SetupError(f"Fargate has nothing with {cores} cores and {memory_mb} MiB; give less, or leave ecs out: --only")

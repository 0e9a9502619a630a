"""The memory that large bodies take, given back when they are gone."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Options of mallopt(3), from malloc.h."""
_LARGE = 2 * 2**20
"""Bytes from which a piece gets pages of its own: they grow without a copy and go back to the system with it, but each
is new, and costs more than one of the heap."""
_MOST_KEPT = 4 * 2**20
"""Bytes at the end of the heap that stay for the next reads."""


def give_back_memory() -> None:
    """Have glibc map large pieces apart for good, and take the others from one heap for all threads.

    By itself it does so only until the first of them is freed: from then on it takes pieces of that size from the heap.
    Two bodies that grow there side by side are copied again and again, and what they leave is no use to anybody. So is
    what lies in a heap of one of the forty threads that read files: the others do not find it.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, others may not
    if set_option is not None:
        set_option(_ARENA_MAX, 1)
        set_option(_MMAP_THRESHOLD, _LARGE)
        set_option(_TRIM_THRESHOLD, _MOST_KEPT)

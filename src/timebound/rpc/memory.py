"""The memory that large messages take, kept for the next ones.

A message by gRPC is copied a few times on the event loop, by the library and by us. Of 9 MB each copy takes 0.2 ms
where memory is at hand, and 3 ms where the system gives it anew, page by page: every time, if glibc returns it after
every message.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of mallopt(3), from malloc.h."""
_MOST_KEPT = 64 * 2**20
"""Bytes at the end of the heap that are not returned: a 10 MB message, its copies and its answer, once over."""
_LARGEST = 32 * 2**20
"""Bytes of one piece that comes from the heap; more glibc does not take."""


def keep_memory() -> None:
    """Let glibc keep what large messages took, up to `_MOST_KEPT`."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, others may not
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _LARGEST)
        set_option(_TRIM_THRESHOLD, _MOST_KEPT)

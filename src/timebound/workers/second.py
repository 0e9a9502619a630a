"""Whether a device has room for a second worker beside the one that serves, as a reload needs for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from timebound.errors import SetupError
from timebound.workers.failures import is_for_want_of_memory

_SPARE = 1.05
"""Two workers never need exactly the same."""


class Memory(Protocol):
    """What is asked of a device here."""

    name: str

    def free_bytes(self) -> int | None: ...


def check_room(device: Memory, needs_bytes: int) -> None:
    """Raise `SetupError` if the weights are there and what the other worker needed beyond them is not."""
    free = device.free_bytes()
    if needs_bytes and free is not None and free < _SPARE * needs_bytes:
        raise SetupError(
            f"{device.name} has {free / 1e9:.1f} GB free, and the worker that serves now needed "
            f"{needs_bytes / 1e9:.1f} GB beside its weights; {_CURE}"
        )


@contextmanager
def loading_beside(is_second: bool) -> Iterator[None]:
    """Load inside the `with` block; if memory runs out beside another worker, that is what is said."""
    try:
        yield
    except Exception as error:
        if is_second and (is_for_want_of_memory(error) or (error.__cause__ and is_for_want_of_memory(error.__cause__))):
            raise SetupError(f"the device has no room for a second copy of the weights; {_CURE}") from error
        raise


_CURE = "restart the server instead, or make max_batch smaller so that two fit"

"""What all ways in to a gateway share: the API keys, the memory for what clients send, the seats of each address."""

from __future__ import annotations

from pathlib import Path

from timebound.admission.held import Held
from timebound.admission.keys import Keys
from timebound.admission.peers import Peers


class Gate:
    """One for all fronts of a server, so that a bound holds for all of them together."""

    def __init__(self, *, keys: str | None = None, max_held: int, max_per_address: int = 1024) -> None:
        """`keys` is the file of the API keys; raises `SetupError` if it cannot be used."""
        self.keys = Keys(Path(keys).expanduser()) if keys is not None else None
        self.held = Held(max_held)
        self.peers = Peers(max_per_address)

    def read_again(self) -> None:
        """Take the API keys as their file has them now; raises `SetupError`."""
        if self.keys is not None:
            self.keys.read()

"""On which terms servers are asked in `ways.py`, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.live.serving import MODELS

from timebound.admission.keys import hash_of

MAX_BODY = 2000


@dataclass(frozen=True)
class Terms:
    """What a server allows, and what everybody who asks it sends besides."""

    max_body: int = MAX_BODY
    pad: str = ""
    """One more field of each body; it makes it large."""
    key: str = ""
    """The API key that it wants; empty: none."""
    target: Path = MODELS / "waits.py"

    @property
    def too_large(self) -> int:
        """Beyond what a message of gRPC may have beside its body, too."""
        return self.max_body + 70_000

    def options(self, folder: Path) -> dict[str, str | int]:
        """Of the server, by name."""
        if not self.key:
            return {"max_body": self.max_body}
        keys = folder / "keys.toml"
        keys.write_text(f'[shop]\nhash = "{hash_of(self.key.encode())}"\n')
        return {"max_body": self.max_body, "keys": str(keys)}

    def flags(self, folder: Path) -> list[str]:
        """The same for the command."""
        named = self.options(folder).items()
        return [
            "--workers",
            "1",
            *(word for name, value in named for word in (f"--{name.replace('_', '-')}", str(value))),
        ]

    def padded(self, body: dict[str, Any]) -> dict[str, Any]:
        """A body as it is sent."""
        return {**body, "pad": self.pad} if self.pad else body


USUAL = Terms()
LARGE = Terms(max_body=600_000, pad="x" * 300_000)
"""More than is looked at on the event loop."""


@dataclass(frozen=True)
class Told:
    """What came back: an error's code or none, the answer, and how it came about."""

    code: str
    value: Any = None
    source: str = ""
    quality: str = field(default="", compare=False)
    id: str = field(default="", compare=False)

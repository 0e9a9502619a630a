"""The README as a package index shows it: links to files of the repository, which lead nowhere there, are plain text.

hatchling runs this when it builds (`tool.hatch.metadata.hooks.custom` in pyproject.toml).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)\s]+\)")


class IndexReadme(MetadataHookInterface):
    """Fills `project.readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": _LINK.sub(r"\1", text)}

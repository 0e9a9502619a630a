"""Templates: real files with `{{name}}` where a value goes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "templates"
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def fill(text: str, values: Mapping[str, object]) -> str:
    """The text with its values; a line that is nothing but a place for an empty value goes away."""
    lines = []
    for line in text.splitlines(keepends=True):
        filled = _PLACE.sub(lambda found: str(values[found[1]]), line)
        if filled.strip() or not _PLACE.search(line):
            lines.append(filled)
    return "".join(lines)

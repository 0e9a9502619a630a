"""Files of a history as a failing disk leaves them."""

from __future__ import annotations

from pathlib import Path

_PAGE_BYTES = 4_096
TABLE_LEAVES = b"\x0d"
"""The first byte of a page with rows."""
ALL_PAGES = b"\x02\x05\x0a\x0d"


def damage(file: Path, kinds: bytes = TABLE_LEAVES) -> None:
    """Overwrite the pages of these kinds, but for the first page, which says what the file is."""
    pages = [file.read_bytes()[at : at + _PAGE_BYTES] for at in range(0, file.stat().st_size, _PAGE_BYTES)]
    spoilt = [number for number, page in enumerate(pages) if number and page[0] in kinds]
    assert spoilt, "there is nothing to damage"
    for number in spoilt:
        pages[number] = b"\xff" * _PAGE_BYTES
    file.write_bytes(b"".join(pages))

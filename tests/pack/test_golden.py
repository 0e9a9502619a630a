"""What is packed of a small app, file by file: every change of a template is seen here as a difference."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

from tests.pack.small import GOLDEN, texts


def test_the_files_of_a_small_app_are_the_golden_ones(tmp_path: Path) -> None:
    golden = {file.relative_to(GOLDEN).as_posix(): file.read_text() for file in GOLDEN.rglob("*") if file.is_file()}
    now = texts(tmp_path, deadline="250ms")
    assert sorted(now) == sorted(golden)
    differences = [
        line
        for name in now
        for line in unified_diff(golden[name].splitlines(), now[name].splitlines(), f"golden/{name}", name, lineterm="")
    ]
    assert not differences, "\n".join([*differences, "if that is meant: python -m tests.pack.small"])

"""The scheduler's numbers stay few, and each says what it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from timebound import scheduler

FOLDER = Path(scheduler.__file__).parent
MOST = 45
# They break ties or bound what a decision costs: none of them changes what is chosen from what is seen.
NO_RULES = {"CHUNK", "CHECKPOINTS", "STEP", "TICK"}


def constants() -> Iterator[tuple[str, str]]:
    """Each number that has a name: the name, and what is said of it on its line, above it or below it."""
    for file in FOLDER.glob("*.py"):
        lines = file.read_text().splitlines()
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name, here = node.targets[0].id, node.lineno - 1
                if name.strip("_").isupper() and not isinstance(node.value, ast.Dict | ast.Tuple | ast.Call):
                    above, below = lines[here - 1], lines[here + 1]
                    said = [line for line in (above, below) if line.startswith(("#", '"""'))]
                    yield name, " ".join([lines[here].partition("#")[2], *said]).strip()


def test_so_few_numbers_steer_the_scheduler() -> None:
    names = [name for name, _ in constants()]
    assert set(names) >= NO_RULES
    assert len(names) - len(NO_RULES) <= MOST, sorted(names)


def test_each_says_what_it_is() -> None:
    assert [name for name, said in constants() if not said] == []

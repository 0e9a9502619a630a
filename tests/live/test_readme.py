"""What the README shows is what happens: its files are written, its commands run, its answers compared."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.live.serving import Serving

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

pytestmark = pytest.mark.live

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_ADDRESS = "http://127.0.0.1:8000"
_VARYING = ("server_timestamp", "confidence", "character_confidence")  # by the hour, and a little by the processor


def blocks(language: str) -> list[str]:
    """The README's code blocks in this language."""
    return [text for kind, text in _FENCE.findall(README) if kind == language]


def commands(block: str) -> list[tuple[str, str]]:
    """(command, expected output) of a console block."""
    parts = re.split(r"^\$ ", block, flags=re.M)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2].strip()) for part in parts]


def run_against(serving: Serving, command: str) -> Any:
    """The JSON that a curl of the README gets from a server on another port."""
    words = shlex.split(command.replace(_ADDRESS, serving.url))
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    return json.loads(done.stdout)


def agrees(shown: Any, got: Any) -> bool:
    """Whether an answer is the one shown; "..." stands for any text, and some numbers for any of their kind."""
    if isinstance(shown, dict) and isinstance(got, dict):
        return shown.keys() == got.keys() and all(
            type(value) is type(got[name]) if name in _VARYING else agrees(value, got[name])
            for name, value in shown.items()
        )
    return bool(shown == got or (shown == "..." and isinstance(got, str)))


def test_the_first_command_installs_and_starts_the_demo_and_the_second_gets_the_answer_shown() -> None:
    (start, _), (ask, answer) = commands(blocks("console")[0]) + commands(blocks("console")[1])
    *install, serve = start.split(" && ")
    assert install == ["python3 -m venv .venv", ".venv/bin/pip install ."]
    assert serve == ".venv/bin/timebound demo"
    with Serving("demo") as serving:
        assert agrees(json.loads(answer), run_against(serving, ask))


def test_the_class_shown_is_served_and_answers_as_shown(tmp_path: Path) -> None:
    (app,) = blocks("python")
    assert app.startswith("# app.py\n")
    (tmp_path / "app.py").write_text(app)
    (serve, _), *asks = commands(blocks("console")[2])
    assert serve == ".venv/bin/timebound serve app.py"
    with Serving(tmp_path / "app.py") as serving:
        for ask, answer in asks:
            assert agrees(json.loads(answer), run_against(serving, ask)), ask


def test_the_test_command_shown_is_the_one_ci_runs() -> None:
    ((command, _),) = commands(blocks("console")[3])
    assert command == "./scripts/test"
    assert f"exec {command}" in (ROOT / ".ci" / "run").read_text()


def test_no_code_block_is_left_out() -> None:
    assert [kind for kind, _ in _FENCE.findall(README)] == ["console", "console", "python", "console", "console"]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150

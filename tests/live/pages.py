"""The code blocks of the docs, run as a reader would: files are written, commands run, and what they print is compared.

A page is one session in one folder, which is the current one. A block that begins with `# NAME` is a file of that
name; a `console` block has commands after `$ ` and below each what it prints, where `...` stands for anything. A block
that needs what is not there has `<!-- not run: why -->` on the line before it.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.live.serving import Serving, clean_environment

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000"
PATIENCE_S = 60.0

_BLOCK = re.compile(r"^(?:<!-- not run: (?P<why>[^>]+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_NAMED = re.compile(r"# ([\w./-]+\.\w+)(?: \(.*\))?\n")
_INSTALLS = re.compile(r"(?:python3 -m venv|(?:\.venv/bin/)?pip install)\b")


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    kind: str
    text: str
    why_not: str | None
    """Why it is not run here, if it is not."""

    @property
    def file(self) -> str | None:
        """The file that it is."""
        found = _NAMED.match(self.text)
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    return [Block(found["kind"], found["text"], found["why"]) for found in _BLOCK.finditer(page.read_text())]


def commands(block: str) -> list[tuple[str, str]]:
    """(command, expected output) of a console block."""
    parts = re.split(r"^\$ ", block, flags=re.M)[1:]
    return [(part.partition("\n")[0].partition("   #")[0].strip(), part.partition("\n")[2].strip()) for part in parts]


def files_of(*pages: Path) -> dict[str, str]:
    """All files that these pages show."""
    return {each.file: each.text for page in pages for each in blocks(page) if each.file is not None}


class Session:
    """A reader with an empty folder, who may take files from other pages."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self._folder = folder
        self._files = files
        self._stack = ExitStack()
        self._serving: Serving | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._stack.__exit__(kind, error, trace)

    def follow(self, page: Path) -> Iterator[str]:
        """Do what a page says; gives each command that was run and did what is shown."""
        for block in blocks(page):
            if block.why_not is not None:
                continue
            if block.kind == "console":
                for command, shown in commands(block.text):
                    self._run(command, shown)
                    yield command
            elif block.kind:
                assert block.file, f"say which file this is, or why it is not run:\n{block.text}"
                (self._folder / block.file).write_text(block.text)

    def _run(self, command: str, shown: str) -> None:
        words = shlex.split(command)
        program = Path(words[0]).name
        self._fetch(words)
        if _INSTALLS.match(command):
            return  # what the tests need is installed
        if program == "timebound" and words[1] == "serve":
            self._serve(words[2:])
            return
        said = self._said(program, words)
        assert not shown or agrees(shown, said), f"$ {command}\nshown: {shown}\nsaid:  {said}"

    def _serve(self, words: list[str]) -> None:
        self._stack.close()
        self._serving = self._stack.enter_context(Serving(*words, "--workers", "1"))

    def _said(self, program: str, words: list[str]) -> str:
        own = {
            "timebound": [sys.executable, "-m", "timebound.cli"],
            "python": [sys.executable],
            "nginx": ["/usr/sbin/nginx"],
            "curl": ["curl"],
        }
        assert program in own, f"{program} is not run by the tests: mark the block with <!-- not run: why -->"
        words = [self._here(word) for word in words]
        if "-p" in words:
            words[words.index("-p") + 1] = str(self._folder)
        done = subprocess.run(
            [*own[program], *words[1:]],
            cwd=self._folder,
            env=clean_environment() | {"PYTHONPATH": str(self._folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def _here(self, word: str) -> str:
        return word.replace(ADDRESS, self._serving.url) if self._serving is not None else word

    def _fetch(self, words: list[str]) -> None:
        """Have the files of other pages that a command names, and point programs at this server."""
        named = " ".join([*words, *(program.read_text() for program in self._folder.glob("*.py"))])
        while missing := [name for name in self._files if name in named and not (self._folder / name).exists()]:
            for name in missing:
                (self._folder / name).write_text(self._files[name])
                named += self._files[name]
        if self._serving is not None:
            for program in self._folder.glob("*.py"):
                program.write_text(program.read_text().replace(ADDRESS, self._serving.url))


def agrees(shown: str, said: str) -> bool:
    """Whether this was printed; `...` stands for anything, and the order of JSON's fields counts for nothing."""
    try:
        return _alike(json.loads(shown), json.loads(said))
    except json.JSONDecodeError:
        return re.fullmatch(".*".join(map(re.escape, shown.split("..."))), said, re.S) is not None


def _alike(shown: Any, said: Any) -> bool:
    if isinstance(shown, dict) and isinstance(said, dict):
        return shown.keys() == said.keys() and all(_alike(value, said[name]) for name, value in shown.items())
    return bool(shown == said or (shown == "..." and isinstance(said, str)))

"""What every command shares: how it is called, and what its help says."""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from timebound import __version__
from timebound.cli.command import make_parser
from timebound.cli.installed import installed


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from commands(below)


COMMANDS = {command.prog: command for command in commands(make_parser())}


@pytest.mark.parametrize("module", ["timebound", "timebound.cli"])
def test_the_package_runs_like_the_command(module: str) -> None:
    shown = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith(f"timebound {__version__}\npython: ")
    wrong = subprocess.run([sys.executable, "-m", module, "serve"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("timebound serve: ")


def test_the_version_says_which_python_runs_it_and_which_extras_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = [
        "numpy>=2.0",
        "numpy>=1.0; extra == 'sums'",
        "ruff>=0.1; extra == 'dev'",
        "nowhere-to-be-had; extra == 'far'",
    ]
    needs += ["pytest[x,y]>=1,<2; extra == 'old'", "numpy; extra == 'far'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: needs)
    version, python, extras = installed().splitlines()
    assert version == f"timebound {__version__}"
    assert platform.python_version() in python
    assert extras == "extras: sums (not installed: far, old)"


def test_the_extras_it_names_are_those_of_the_package() -> None:
    names = set(re.findall(r"[\w-]+", installed().splitlines()[2].partition(":")[2].replace("not installed", "")))
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert names - {"none"} == set(declared["optional-dependencies"]) - {"dev"}


@pytest.mark.parametrize(
    ("call", "meant"),
    [(["srve", "app.py"], "serve"), (["new", "hello", "--template", "imge"], "image"), (["results", "gett"], "get")],
)
def test_a_mistyped_command_or_choice_is_told_the_nearest(
    call: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make_parser(*call[:1]).parse_args(call)
    assert f"; did you mean {meant}?\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--wrkers", "; did you mean --workers?\n"),
        ("--time", "timebound tune: unknown option --time\nsee timebound tune --help"),
    ],
)
def test_a_mistyped_flag_is_told_the_nearest_name_and_not_merely_another_that_has_dashes(
    flag: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb = "serve" if flag == "--wrkers" else "tune"
    with pytest.raises(SystemExit):
        make_parser(verb).parse_args([verb, "app.py", flag])
    assert said in capsys.readouterr().err


def test_every_command_is_called_by_the_name_of_the_package() -> None:
    assert len(COMMANDS) > 15
    assert all(name == "timebound" or name.startswith("timebound ") for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_examples(name: str) -> None:
    shown = COMMANDS[name].format_help()
    assert "examples:\n" in shown
    assert re.search(rf"^  {name}\b", shown, re.M)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_says_what_it_is_for_in_a_phrase(name: str) -> None:
    for action in COMMANDS[name]._actions:
        if not isinstance(action, argparse._SubParsersAction):
            meaning = (action.help or "").partition(" (default")[0]
            assert len(meaning.split()) >= 3 or meaning in ("show tracebacks", "print JSON"), (action.dest, meaning)
            assert "likewise" not in meaning, action.dest

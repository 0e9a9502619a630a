"""An app's own settings: `[app]` in timebound.toml, `APP_<NAME>` in `.env` and the environment, `--set name=value`.

They reach every process that makes the models, as `self.settings`. Values are never printed: some are secrets.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from timebound.errors import SetupError

FILE = "timebound.toml"
TABLE = "app"
PREFIX = "APP_"
_SET = "TIMEBOUND_SET"
"""What `--set` gave to a command, for the processes that it starts: a line each."""

_APP = "TIMEBOUND_APP"
"""What a program hands to the server that it starts, as JSON: anyone on the machine may read a command line."""


def read(
    given: Sequence[str], environment: Mapping[str, str], folder: Path | None, home: Path | None = None
) -> dict[str, Any]:
    """The settings by name, from `--set`, else the environment, else files in `folder`, else those in the app's `home`.

    Raises `SetupError`.
    """
    found: dict[str, Any] = {}
    for place in (home, folder):
        if place is not None and place.is_dir():
            found |= _table(place / FILE) | _variables(dotenv(place / ".env"))
    found |= _variables(environment)
    handed = _handed(environment.get(_APP, ""))
    return found | _given(environment.get(_SET, "").splitlines()) | handed | _given(given)


def read_here(home: Path | None) -> dict[str, Any]:
    """The settings that a server of an app in this folder would find if it were started here, without any `--set`."""
    return read((), os.environ, Path.cwd(), home)


def hand_on(given: Sequence[str]) -> None:
    """Have the processes that this one starts find what `--set` was given; raises `SetupError` if it cannot be read."""
    _given(given)
    if given:
        os.environ[_SET] = "\n".join(given)


def handed_to(values: Mapping[str, Any]) -> dict[str, str]:
    """The variables by which a server that this process starts finds these settings, with their types."""
    if not values:
        return {}
    return {_APP: json.dumps(msgspec.to_builtins(values, str_keys=True, enc_hook=str))}


def forget_handed() -> None:
    """Keep what was handed to this process from those that it starts."""
    os.environ.pop(_APP, None)


def _handed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SetupError(f"{_APP} must be a JSON object; it is for `tb.start`, others use --set")
    return found


def _given(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise SetupError(f"--set takes name=value, and what was given begins with {name.strip()!r}")
        found[name.strip()] = value
    return found


def dotenv(path: Path) -> Mapping[str, str]:
    """The variables of a .env file; none if there is no such file."""
    if not path.is_file():
        return {}
    from dotenv import dotenv_values  # only servers with a .env file pay for this import
    from dotenv.parser import parse_stream

    with path.open(encoding="utf-8") as file:  # dotenv itself would say neither of which file it is nor what to write
        for line in parse_stream(file):
            if line.error:
                raise SetupError(f"{path}: line {line.original.line} is not understood; write NAME=value")
    return {name: value for name, value in dotenv_values(path).items() if value is not None}


def _table(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        table = tomllib.loads(file.read_text()).get(TABLE, {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} is not valid TOML: {error}") from None
    if not isinstance(table, dict):
        raise SetupError(f"{file}: app is for the app's own settings; write a table: [app]")
    return table


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(PREFIX).lower(): text for name, text in environment.items() if name.startswith(PREFIX)}


def check_known(kinds: Sequence[type | None], names: Iterable[str]) -> None:
    """Raise `SetupError` for a setting that is in none of the classes' `Settings`, if each of them has one.

    A variable of the environment may be another program's: many begin with APP_.
    """
    if not kinds or None in kinds:
        return
    known = sorted({name for kind in kinds if kind is not None for name in _names(kind)})
    for name in names:
        if name not in known and f"{PREFIX}{name.upper()}" not in os.environ:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
            raise SetupError(f"the app has no setting {name!r}; {hint}")


def settings_of(kind: type | None, values: Mapping[str, Any], *, where: str) -> Any:
    """What `self.settings` is, by the class's own `Settings`; raises `SetupError` if a value is missing or wrong."""
    if kind is None:
        return SimpleNamespace(**values)
    own = {name: values[name] for name in _names(kind) if name in values}
    try:
        return msgspec.convert(own, kind, strict=False)
    except msgspec.ValidationError as error:  # it names the place and what is wanted, and never the value
        cure = f"set it by --set name=value, {PREFIX}<NAME> in the environment or .env, or [{TABLE}] in {FILE}"
        raise SetupError(f"{where}: settings: {error}; {cure}") from None


def _names(kind: type) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]

"""Where the options are found: each is looked up in this order, and `Config.sources` remembers where it was.

Flag, environment (TIMEBOUND_<NAME>), `.env` and `timebound.toml` here, the same beside the app, default.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, replace
from pathlib import Path
from typing import Any

from timebound import app_settings
from timebound.app_settings import FILE, dotenv
from timebound.config.options import Config, default_of, options
from timebound.config.values import Form
from timebound.errors import SetupError

PREFIX = "TIMEBOUND_"
_PASSWORD = re.compile(r"(?<=://).*@|(?<=password=)[^&]*")
"""What may be secret in a URL: all before the last @, because passwords are written without escapes too."""


def resolve(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    folder: Path | None,
    home: Path | None = None,
    *,
    app: Sequence[str] = (),
) -> Config:
    """The configuration for a server started in `folder` whose app is in the folder `home`.

    Without a folder no files are read. `app` are settings of the app itself, as name=value.

    Raises `SetupError` naming the value and its source.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, found in settings(flags, environment, folder, home).items():
        sources[name], values[name] = found[0]
    own = app_settings.read(app, environment, folder, home)
    config = Config(**values, app=own, sources=sources)
    if config.deadline is not None and config.deadline > config.max_deadline:
        raise SetupError(
            f"deadline {config.deadline:g} s is above max_deadline {config.max_deadline:g} s; raise that too"
        )
    if config.proxy_protocol and config.trusted_proxies is None:
        raise SetupError("--proxy-protocol needs --trusted-proxies: anybody else could say to be anybody")
    if config.proxy_protocol and config.tls_cert is not None:
        raise SetupError("--proxy-protocol and --tls-cert do not go together; let TLS end at the proxy")
    if (config.tls_cert is None) != (config.tls_key is None):
        raise SetupError("--tls-cert and --tls-key belong together; give both or none")
    if config.max_held is not None and config.max_held < config.max_body:
        raise SetupError(f"max_held {config.max_held} is below max_body {config.max_body}; raise it or lower that")
    return config


def of_options(given: Mapping[str, Any]) -> Config:
    """The configuration of a program that gives these options and reads no other place; raises `SetupError`."""
    known = {option.name for option in options()}
    flags = {name: value for name, value in given.items() if name != app_settings.TABLE}
    for name in flags:
        if name not in known:
            raise SetupError(f"{name!r} is no option; `timebound serve --help` lists them")
    return replace(resolve(flags, {}, None), app=dict(given.get(app_settings.TABLE, {})))


def settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], folder: Path | None, home: Path | None = None
) -> dict[str, list[tuple[str, Any]]]:
    """By option, where it is set and to what; the first one counts, and the others are left as they are written."""
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("flag", flags),
        ("environment", _from_environment(environment, "environment")),
    ]
    if folder is not None:
        layers += _in_folder(folder, ".env", FILE)
        if home is not None and home.resolve() != folder.resolve():
            layers += _in_folder(home, str(home / ".env"), str(home / FILE))
    found: dict[str, list[tuple[str, Any]]] = {}
    for option in options():
        for source, layer in layers:
            value = layer.get(option.name)
            if value is not None:
                places = found.setdefault(option.name, [])
                places.append((source, value if places else _parsed(option, value, source)))
    return found


def _in_folder(folder: Path, variables: str, table: str) -> list[tuple[str, Mapping[str, Any]]]:
    """What the two files in a folder say; they are named so."""
    return [
        (variables, _from_environment(dotenv(folder / ".env"), variables)),
        (table, _from_toml(folder / FILE)),
    ]


def describe(config: Config) -> str:
    """Each option, its value and where it came from, in columns."""
    rows = [("option", "value", "from")]
    for option in options():
        value = getattr(config, option.name)
        shown = f"({option.metadata['unset']})" if value is None else str(value)
        if value is not None and option.metadata["is_secret"]:
            hidden = _PASSWORD.sub(lambda found: "***@" if found[0].endswith("@") else "***", shown)
            shown = hidden if "://" in shown else shown if value == default_of(option) else "***"
        rows.append((option.name, shown, config.sources.get(option.name, "default")))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{name:{widths[0]}}  {value:{widths[1]}}  {source}" for name, value, source in rows]
    if config.app:
        lines.append(f"settings of the app, whose values are not shown: {', '.join(sorted(config.app))}")
    return "\n".join(lines)


def _parsed(option: Field[Any], value: Any, source: str) -> Any:
    form: Form = option.metadata["form"]
    try:
        return form.read(value)
    except (ValueError, KeyError, AttributeError, TypeError):
        shown = "not what it can be" if option.metadata["is_secret"] and "@" in str(value) else repr(value)
        raise SetupError(f"{_written(option.name, source)} is {shown} ({source}); it must be {form.wanted}") from None


def _written(name: str, source: str) -> str:
    """What an option is called where it was set."""
    if source == "flag":
        return "--" + name.replace("_", "-")
    return f"{PREFIX}{name.upper()}" if source == "environment" or source.endswith(".env") else name


def _from_environment(environment: Mapping[str, str], source: str) -> dict[str, str]:
    known = {f"{PREFIX}{option.name.upper()}": option.name for option in options()}
    for name in environment:
        # Variables of others may share the prefix; one that is nearly an option is a slip.
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        if name.startswith(PREFIX) and name not in known and near:
            raise SetupError(f"{name} ({source}) is no option; did you mean {near[0]}?")
    return {known[name]: value for name, value in environment.items() if name in known and value != ""}


def _from_toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} is not valid TOML: {error}") from None
    table.pop(app_settings.TABLE, None)
    known = [option.name for option in options()]
    for name in table:
        if name not in known:
            if isinstance(table[name], dict):
                raise SetupError(
                    f"{path}: unknown table [{name}]; settings of the app itself go into [{app_settings.TABLE}]"
                )
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(known)}"
            raise SetupError(f"{path}: unknown option {name!r}; {hint}")
    return table

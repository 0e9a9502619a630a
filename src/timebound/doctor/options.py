"""Checks of the settings: where they come from, and what in them contradicts itself or has no effect."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from timebound.admission import Keys
from timebound.config import FILE, PREFIX, Config, options
from timebound.doctor.finding import Finding, ok, problem, warning
from timebound.errors import SetupError

Settings = Mapping[str, list[tuple[str, Any]]]
"""What `config.settings` gives: by option, each place that sets it, the one that counts first."""

SHORTEST_TOKEN = 16
_SECRET = {option.name for option in options() if option.metadata["is_secret"]}


def check_options(config: Config, settings: Settings, folder: Path, cores: int) -> Iterator[Finding]:
    """All about the settings: warnings and problems, or one line that there are none."""
    found = [
        *shadowed(settings),
        *idle(config),
        *times(config),
        *crowd(config, cores),
        *doors(config),
        *secrets(config, folder),
        *profiles(config),
        *keys(config),
    ]
    sources = sorted({config.sources[name] for name in config.sources})
    told = f"{len(config.sources)} of {len(options())} options are set"
    yield ok("settings", f"{told} ({', '.join(sources)})" if sources else f"{told}; the rest are defaults")
    yield from found


def keys(config: Config) -> Iterator[Finding]:
    """A keys file that the server would not take."""
    if config.keys is None:
        return
    try:
        Keys(Path(config.keys))
    except SetupError as error:
        yield problem("settings", str(error))


def shadowed(settings: Settings) -> Iterator[Finding]:
    """An option set in two places to two values: somebody may change the one that does not count."""
    for name, places in settings.items():
        (source, value), *others = places
        for place, other in others:
            if place != "flag" and source != "flag" and str(other) != str(value):
                said = "another value" if name in _SECRET else repr(other)
                text = f"{name} is set in {source}, and to {said} in {place}, which does not count"
                yield warning("settings", text, f"remove it from {place}")


def idle(config: Config) -> Iterator[Finding]:
    """Options that are set and have no effect."""
    is_redis = "://" in config.store
    if not is_redis:
        for name in ("store_namespace", "store_lease", "store_patience"):
            if name in config.sources:
                yield warning(
                    "settings", f"{name} is set and the store is {config.store}", "give --store redis://... or drop it"
                )
    if config.store == "none" and "store_memory" in config.sources:
        yield warning("settings", "store_memory is set and the store is none", "drop one of the two")
    if config.reuse_port and not is_redis:
        text = f"reuse_port lets several servers listen, and with the store {config.store} they share no results"
        yield warning("settings", text, "give --store redis://... if retries are to be answered from results")


def times(config: Config) -> Iterator[Finding]:
    """Lengths of time that do not go together."""
    if config.deadline is None:
        return
    if config.margin >= config.deadline:
        text = f"margin {config.margin:g} s leaves nothing of deadline {config.deadline:g} s"
        yield problem("settings", text, "make the margin a small part of the deadline")
    if "://" in config.store and config.store_patience >= config.deadline / 2:
        text = f"store_patience {config.store_patience:g} s is half of deadline {config.deadline:g} s or more"
        yield warning("settings", text, "lower it: a silent Redis would cost requests their deadline")
    if config.grace < config.deadline:
        text = f"grace {config.grace:g} s is shorter than deadline {config.deadline:g} s"
        yield warning("settings", text, "raise it, or a stop leaves accepted requests without an answer")


def crowd(config: Config, cores: int) -> Iterator[Finding]:
    """More threads at work than there are cores."""
    if all(value is None for value in (config.workers, config.slots, config.threads)):
        return
    together = (config.workers or 1) * (config.slots or 1) * (config.threads or 1)
    if together > cores:
        text = f"workers x slots x threads is {together} on {cores} core{'s' if cores > 1 else ''}"
        yield warning("settings", text, "lower them, or let `timebound tune` find what is best")


def doors(config: Config) -> Iterator[Finding]:
    """What strangers could reach."""
    for each in (config.trusted_proxies or "unix").split(","):
        if each != "unix" and ipaddress.ip_network(each, strict=False).prefixlen == 0:
            text = f"trusted_proxies has {each}: whoever comes may say to be anybody, and to have come earlier"
            yield warning("settings", text, "name the addresses or networks of the proxies alone")
    if is_local(config.host):
        return
    if config.watch:
        text = f"watch is on and the server listens on {config.host}"
        yield warning("settings", text, "watch is for development: leave it out where others can reach the server")
    if config.admin_token is not None and len(config.admin_token) < SHORTEST_TOKEN:
        text = f"admin_token has {len(config.admin_token)} characters and the server listens on {config.host}"
        yield warning("settings", text, "make one that cannot be guessed: `openssl rand -hex 16`")


def is_local(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def secrets(config: Config, folder: Path) -> Iterator[Finding]:
    """Passwords in files that everybody may read."""
    for name in sorted(_SECRET & set(config.sources)):
        source = config.sources[name]
        if source not in (".env", FILE) and not source.endswith(FILE):
            continue
        value = getattr(config, name)
        file = folder / source
        if ("@" in value or "://" not in value) and value not in ("memory", "none") and file.stat().st_mode & 0o004:
            cure = f"`chmod 600 {file.name}`, or set {PREFIX}{name.upper()} in the environment"
            yield warning("settings", f"{source} holds a secret ({name}) and every user can read it", cure)


def profiles(config: Config) -> Iterator[Finding]:
    """The folder that keeps what was learned."""
    if config.profiles == "none":
        return
    place = Path(config.profiles).expanduser()
    nearest = next(parent for parent in (place, *place.absolute().parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        text = f"nothing can be written to {place} (profiles)"
        yield warning("settings", text, "choose a folder with --profiles, or the speed is learned anew at each start")

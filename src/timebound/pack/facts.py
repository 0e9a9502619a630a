"""What the files of a pack need to know, from the app, its options and a few flags."""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from timebound.config import FILE, PREFIX, Config, options
from timebound.errors import SetupError
from timebound.pack.contents import Contents
from timebound.pack.origin import Origin

_MIB = 2**20
_SERVER_MIB = 512
"""A server with a small model takes about 300 MiB, all its processes together; the rest is for bodies and batches."""
_PER_MODEL_BYTE = 4
"""Bytes of memory for each byte of a model file: weights, what a batch makes of them, and a second copy in a reload."""
_STEP_MIB = 256
REDIS_MIB = 256
LAST_WORDS_S = 5
"""What a server may take to leave beyond its grace time."""
_DRAIN_S = 5.0
"""How long balancers that do not send again are given to see that a server leaves."""
_WORDS_OF_YAML = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
_OF_THE_PLACE = ("host", "port", "log_format", "profiles", "store", "trusted_proxies", "drain_delay", "watch",
                "reuse_port", "proxy_protocol", "debug")  # fmt: skip
"""Options of the place where a server runs: the files say what they are there."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a pack beyond the app's own options; None is for us to choose."""

    name: str | None = None
    replicas: int = 2
    cores: int | None = None
    memory: int | None = None
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"
    again: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One app, ready to be written about."""

    name: str
    target: str
    """What `timebound serve` is told in the folder where app and models are."""
    app: str
    """How the app is reached from the pack, for packing it again."""
    config: Config
    chosen: Mapping[str, Any]
    """Options by name that were set somewhere."""
    carried: Mapping[str, str]
    """Options by their name in the environment that are not in the app's own timebound.toml."""
    contents: Contents
    origin: Origin
    replicas: int
    cores: int
    memory_mb: int
    memory_why: str
    python: str
    again: str = ""
    """The flags with which this was asked for, for the next time."""

    @property
    def subnet(self) -> str:
        """Addresses for a network of its own: by the name, so that two apps on one machine have different ones."""
        number = zlib.crc32(self.name.encode())
        return f"10.{200 + number % 50}.{number // 50 % 256}.0/24"

    @property
    def drain_s(self) -> int:
        """How long a server that is to stop still serves, where what stands in front does not ask another."""
        return int(self.config.drain_delay or _DRAIN_S)

    @property
    def stop_s(self) -> int:
        """How long a server that is told to stop may take."""
        return int(self.config.grace) + LAST_WORDS_S


def name_of(target: Path, wanted: str | None) -> str:
    """The app's name as images, services and hosts may have it; raises `SetupError` if it cannot be one."""
    if wanted is not None:
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", wanted):
            raise SetupError(f"--name {wanted!r} cannot be a name: use small letters, digits and '-', a letter first")
        return _no_word(wanted)
    place = target.resolve()
    word = place.name if target.is_dir() else place.parent.name if place.name == "app.py" else place.stem
    name = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:40].strip("-")
    return _no_word(name if name[:1].isalpha() else f"app-{name}".strip("-"))


def _no_word(name: str) -> str:
    """Not one that YAML takes for something else than a text."""
    return f"{name}-app" if name in _WORDS_OF_YAML else name


def facts(target: Path, wish: Wish, *, app: str, config: Config, contents: Contents, origin: Origin) -> Facts:
    """Everything known about `target`; raises `SetupError` if its options cannot work in a container."""
    _check(config, contents)
    cores = wish.cores or _cores(config)
    memory_mb = wish.memory // _MIB if wish.memory else _memory_mib(contents)
    why = (
        "Memory as given." if wish.memory else "Memory is a guess from the size of the models: measure, then change it."
    )
    return Facts(
        name=name_of(target, wish.name),
        target=contents.served,
        app=app,
        config=config,
        chosen=_chosen(config),
        carried=_carried(config, contents),
        contents=contents,
        origin=origin,
        replicas=wish.replicas,
        cores=cores,
        memory_mb=memory_mb,
        memory_why=why,
        python=wish.python,
        again=wish.again,
    )


def _check(config: Config, contents: Contents) -> None:
    if config.port == 0:
        raise SetupError("--port is 0, a free port at each start; what stands in front must know it: give one")
    if config.tls_cert:
        raise SetupError("tls_cert is set, but TLS ends before the server here: at nginx, an ingress or a load "
                         "balancer; take tls_cert and tls_key out of the options")  # fmt: skip
    if config.grpc_port is not None:
        raise SetupError("grpc_port is set, but what stands in front of the servers here speaks HTTP alone; take it "
                         "out of the options, or start `timebound serve` behind a proxy of your own")  # fmt: skip
    if config.keys and config.keys not in contents.files:
        raise SetupError(f"the keys file {config.keys} is not part of the app; put it beside app.py, and name it by "
                         "its path from there")  # fmt: skip


def _cores(config: Config) -> int:
    """As many as batches are computed at once, where the options say so."""
    return (config.workers or 1) * (config.slots or 1) * (config.threads or 1)


def _memory_mib(contents: Contents) -> int:
    wanted = _SERVER_MIB + _PER_MODEL_BYTE * contents.model_bytes // _MIB
    return max(1024, -(-wanted // _STEP_MIB) * _STEP_MIB)


def _chosen(config: Config) -> dict[str, Any]:
    """Every option that was set, secrets and those of the place aside."""
    return {
        option.name: getattr(config, option.name)
        for option in options()
        if option.name in config.sources and option.name not in _OF_THE_PLACE and not option.metadata["is_secret"]
    }


def _carried(config: Config, contents: Contents) -> dict[str, str]:
    """Of these, what does not go along with the app as its timebound.toml does."""
    along = {FILE} & set(contents.files)
    return {
        f"{PREFIX}{name.upper()}": _written(value)
        for name, value in _chosen(config).items()
        if config.sources[name] not in along
    }


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

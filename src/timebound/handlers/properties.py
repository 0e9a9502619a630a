"""Reads `config.properties` of TorchServe and MMS: what means something here becomes options, the rest is named."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from timebound.errors import SetupError
from timebound.handlers.manifest import USUAL_TIMEOUT_S

_OPTIONS: Mapping[str, str] = {
    "default_workers_per_model": "workers",
    "job_queue_size": "max_queue",
    "max_request_size": "max_body",
    "cors_allowed_origin": "cors_origins",
    "private_key_file": "tls_key",
    "certificate_file": "tls_cert",
}
"""Properties that are options here, by their names."""

_OWN = {
    "inference_address", "management_address", "metrics_address", "model_store", "load_models", "models",
    "default_response_timeout", "decode_input_request", "disable_token_authorization",
}  # fmt: skip
_HARMLESS = {"enable_model_api", "model_api_enabled", "enable_envvars_config"}
_ADDRESS = re.compile(r"(?:(?P<scheme>https?)://)?(?P<host>[^:/]+|\[[^]]+\])(?::(?P<port>\d+))?/?")
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_TRUE = ("true", "1", "yes")


class Archive(msgspec.Struct, frozen=True, rename="camel"):
    """What `models` says of one version of a model."""

    mar_name: str | None = None
    default_version: bool = False
    batch_size: int | None = None
    response_timeout: float | None = None


class Properties(msgspec.Struct, kw_only=True):
    """What a file says, in our words."""

    options: dict[str, str] = {}
    """Options of the configuration by name."""
    inference: str | None = None
    management: str | None = None
    metrics: str | None = None
    """Addresses, as host:port."""
    store: str | None = None
    load: str | None = None
    models: dict[str, dict[str, Archive]] = {}
    usual_timeout: float = USUAL_TIMEOUT_S
    decodes: bool = True
    """Whether JSON and texts come to handlers decoded."""
    is_open: bool = False
    """Whether the management answers without a token."""
    ignored: list[str] = []


def read_properties(file: Path, environment: Mapping[str, str]) -> Properties:
    """What a file says; raises `SetupError` that names the line at fault."""
    try:
        found = parse(file.read_text("latin-1"))
    except OSError as error:
        raise SetupError(f"{file} cannot be read: {error.strerror}") from None
    if found.get("enable_envvars_config", "").lower() in _TRUE:
        for name in [*_OWN, *_OPTIONS]:
            if value := environment.get(f"TS_{name.upper()}") or environment.get(f"MMS_{name.upper()}"):
                found[name] = value
    told = Properties()
    told.options = {_OPTIONS[name]: value for name, value in found.items() if name in _OPTIONS}
    if told.options.get("workers") == "0":  # as many as it thinks right
        del told.options["workers"]
    told.inference = _address(file, found, "inference_address")
    told.management = _address(file, found, "management_address")
    told.metrics = _address(file, found, "metrics_address")
    told.store, told.load = found.get("model_store"), found.get("load_models")
    told.models = _models(file, found.get("models"))
    told.usual_timeout = _seconds(file, found.get("default_response_timeout"))
    told.decodes = found.get("decode_input_request", "true").lower() in _TRUE
    told.is_open = found.get("disable_token_authorization", "").lower() in _TRUE
    told.ignored = [name for name in found if name not in _OPTIONS and name not in _OWN and name not in _HARMLESS]
    return told


def parse(text: str) -> dict[str, str]:
    """The pairs of a Java properties file; a later one goes before an earlier one."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for start in lines:
        line = start.lstrip()
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:  # it goes on in the next
            line = line[:-1] + next(lines, "").lstrip()
        name, value = _parted(line)
        found[_unescaped(name)] = _unescaped(value).strip()
    return found


def _parted(line: str) -> tuple[str, str]:
    is_escaped = False
    for place, sign in enumerate(line):
        if not is_escaped and sign in "=: \t":
            rest = line[place:].lstrip()
            return line[:place], rest[1:].lstrip() if rest[:1] in ("=", ":") else rest
        is_escaped = sign == "\\" and not is_escaped
    return line, ""


def _unescaped(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        sign = found[1]
        return chr(int(sign[1:], 16)) if len(sign) > 1 else _PLAIN.get(sign, sign)

    return _ESCAPED.sub(plain, text)


def _address(file: Path, found: Mapping[str, str], name: str) -> str | None:
    value = found.get(name)
    if value is None:
        return None
    match = _ADDRESS.fullmatch(value)
    if match is None:
        raise SetupError(f"{file}: {name} is {value!r}; write it as http://127.0.0.1:8080")
    port = match["port"] or ("443" if match["scheme"] == "https" else "80")
    return f"{match['host']}:{port}"


def _models(file: Path, text: str | None) -> dict[str, dict[str, Archive]]:
    if text is None:
        return {}
    try:
        return msgspec.convert(json.loads(text), type=dict[str, dict[str, Archive]])
    except (ValueError, RecursionError) as error:
        wanted = 'models={"m": {"1.0": {"marName": "m.mar", "batchSize": 4}}}'
        raise SetupError(f"{file}: models cannot be read: {error}; write it as {wanted}") from None


def _seconds(file: Path, text: str | None) -> float:
    if text is None:
        return USUAL_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        raise SetupError(f"{file}: default_response_timeout is {text!r}; it must be seconds above zero")
    return seconds

"""Every option once: name, default, meaning. Flags, environment, files and the docs table derive from it.

An option is looked up in this order, and `Config.sources` remembers where it was found:
flag, environment (TIMEBOUND_<NAME>), `.env`, `timebound.toml`, the served folder's `timebound.toml`, default.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, NamedTuple

from timebound import app_settings
from timebound.app_settings import dotenv
from timebound.errors import SetupError
from timebound.types import ENGINES, STORES

PREFIX = "TIMEBOUND_"
FILE = app_settings.FILE
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "human", "json")
KEYS_IN_LOG = ("hashed", "plain", "none")

_TIMES = {"ms": 0.001, "s": 1, "": 1, "min": 60}
_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*([A-Za-z]*)\s*")
_TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Form(NamedTuple):
    """How a value is made of what was written, what to say it must be, and which values are that."""

    make: Callable[[Any], Any]
    wanted: str
    is_right: Callable[[Any], object] = lambda value: True

    def read(self, written: Any) -> Any:
        """The value; raises `ValueError`, `KeyError`, `AttributeError` or `TypeError` if it is none."""
        value = self.make(written)
        if not self.is_right(value):
            raise ValueError(written)
        return value


def whole(low: int, high: int) -> Form:
    """A whole number between `low` and `high`."""
    wanted = f"a whole number from {low} to {high}"
    return Form(lambda value: int(str(value)), wanted, lambda number: low <= number <= high)


def seconds(low: float, high: float) -> Form:
    """A length of time in seconds, or with a unit: 1.5, "250ms", "2s", "1min"."""
    wanted = f'seconds from {low:g} to {high:g}, or a text such as "250ms"'
    return Form(lambda value: _in_units(value, _TIMES), wanted, lambda length: low <= length <= high)


def one_of(*choices: str) -> Form:
    """One of a few words."""
    return Form(str, f"one of {', '.join(choices)}", lambda word: word in choices)


def _in_units(value: Any, units: Mapping[str, float]) -> float:
    number, unit = _NUMBER_AND_UNIT.fullmatch(str(value)).groups()  # type: ignore[union-attr]
    return float(number) * (units.get(unit) or units[unit.upper()])


def _is_store(value: str) -> bool:
    word, separator, _ = value.partition("://")
    return word in STORES and not (word in ("memory", "none") and separator)


def _listed(value: Any) -> str:
    return ",".join(str(each).strip() for each in (value if isinstance(value, list) else str(value).split(",")))


def _are_origins(value: str) -> bool:
    return all(re.fullmatch(r"\*|https?://[^/\s*]+", each.rstrip("/")) for each in value.split(","))


def _are_proxies(value: str) -> bool:
    return all(each == "unix" or ip_network(each, strict=False) for each in value.split(","))


def _are_addresses(value: str) -> bool:
    return all(each.rpartition(":")[0] and 0 <= int(each.rpartition(":")[2]) <= 65535 for each in value.split(","))


def _is_loopback(value: str) -> bool:
    host = value.rpartition(":")[0].strip("[]")
    return _are_addresses(value) and (host == "localhost" or ip_address(host).is_loopback)


def _read_engine(value: Any) -> str:
    """One engine for all models, `model=engine` for single ones, or both: "openvino-f32,digits=openvino-bf16"."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        pairs = [(name, engine) for name, _, engine in (part.strip().rpartition("=") for part in value.split(","))]
    named = {str(name).strip(): str(engine).strip() for name, engine in pairs}
    if len(named) != len(pairs) or not named or not set(named.values()) <= set(ENGINES):
        raise ValueError
    return ",".join(f"{name}={engine}" if name else engine for name, engine in named.items())


_A_DEVICE = r"auto|cpu|host|cuda(:[0-9]{1,3})?"
SIZE = Form(
    lambda value: int(_in_units(value, _SIZES)),
    'a size above zero, such as 1000000, "10MB" or "512KiB"',
    lambda count: count > 0,
)
TRUTH = Form(lambda value: _TRUTHS[str(value).lower()], "true or false")
TEXT = Form(lambda value: value, "a text", lambda value: isinstance(value, str) and value)
NAME = Form(lambda value: value, "letters, digits, '.', '_' or '-'", re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch)
ORIGINS = Form(_listed, "origins such as https://example.org, separated by commas, or *", _are_origins)
PROXIES = Form(_listed, "addresses or networks such as 10.0.0.0/8, separated by commas, or unix", _are_proxies)
ADDRESSES = Form(_listed, "host:port, several separated by commas, such as 127.0.0.1:8081", _are_addresses)
LOOPBACK = Form(str, "a loopback address with its port, such as 127.0.0.1:8081", _is_loopback)
STORE = Form(str, "memory, none, or a URL such as redis://127.0.0.1:6379/0", _is_store)
DEVICE = Form(str, "one of auto, cpu, cuda, cuda:1 (or another number), host", re.compile(_A_DEVICE).fullmatch)
ENGINE = Form(_read_engine, f"one of {', '.join(ENGINES)}, or model=engine,...")

_PASSWORD = re.compile(r"(?<=://).*@|(?<=password=)[^&]*")
"""What may be secret in a URL: all before the last @, because passwords are written without escapes too."""

AT_START = "chosen at start"
"""Shown for an option that is not given and that the server then chooses by itself."""


def _option(default: Any, form: Form, meaning: str, *, is_secret: bool = False, unset: str | None = None) -> Any:
    """`unset` says what holds while an option without a default is not given."""
    assert (default is None) == (unset is not None), meaning
    return field(default=default, metadata={"form": form, "help": meaning, "is_secret": is_secret, "unset": unset})


@dataclass(frozen=True, kw_only=True)
class Config:
    """All options, with their defaults."""

    host: str = _option("127.0.0.1", TEXT, "address to listen on; 0.0.0.0 listens on all addresses of the machine")
    port: int = _option(8000, whole(0, 65535), "port to listen on; 0 takes a free one")
    grpc_port: int | None = _option(
        None,
        whole(0, 65535),
        "port for gRPC (Open Inference Protocol); 0 takes a free one; needs the extra timebound[grpc]",
        unset="none",
    )
    also_at: str | None = _option(
        None,
        ADDRESSES,
        "more addresses to listen on, as host:port, several separated by commas; they answer as the main one does",
        unset="none",
    )
    operator_at: str | None = _option(
        None,
        LOOPBACK,
        "a loopback address, as host:port, at which everybody who asks is the operator: only for machines that nobody "
        "else uses",
        unset="none",
    )
    workers: int | None = _option(
        None, whole(1, 256), "number of worker processes, which hold the models and compute batches", unset=AT_START
    )
    slots: int | None = _option(
        None, whole(1, 256), "number of batches that one worker computes at the same time", unset=AT_START
    )
    threads: int | None = _option(
        None, whole(1, 256), "number of threads that the machine-learning library uses for one batch", unset=AT_START
    )
    device: str = _option(
        "auto",
        DEVICE,
        "what networks of torch run on: cpu, cuda (a worker for each GPU), cuda:1 (that one alone), host (a slow "
        "stand-in, for tests), or auto, which leaves it to the models",
    )
    hands: int | None = _option(
        None,
        whole(0, 64),
        "number of processes of each worker that run `prepare` and hand over the results in shared memory; "
        "0 prepares in the worker itself",
        unset="for a worker with a GPU half of its share of the cores, at most 8; else 0",
    )
    engine: str | None = _option(
        None,
        ENGINE,
        f"what ONNX files run on: {', '.join(ENGINES)}; for single models write model=engine, separated by commas",
        unset="each model's own",
    )
    deadline: float | None = _option(
        None,
        seconds(0.001, 3600),
        "seconds from the arrival of a request to its answer, in place of the models' own deadlines",
        unset="each model's own",
    )
    max_deadline: float = _option(
        60.0, seconds(0.001, 3600), "longest deadline in seconds, also for requests that ask for more"
    )
    margin: float = _option(
        0.010,
        seconds(0, 10),
        "seconds before each deadline that are kept free for sending the answer; the server starts with this "
        "and then learns how much it needs",
    )
    max_queue: int = _option(4096, whole(1, 10**6), "requests of one model that may wait; more are refused (429)")
    profiles: str = _option(
        "~/.cache/timebound",
        TEXT,
        "folder in which the learned speed of the models is kept across restarts; 'none' keeps nothing",
    )
    store: str = _option(
        "memory",
        STORE,
        "where results are kept by key: memory, none, or redis://[:password@]host:6379/0 to share them with "
        "other servers (also rediss://, unix:///path; redis-cluster:// and rediss-cluster:// for a cluster)",
        is_secret=True,
    )
    store_memory: int = _option(64_000_000, SIZE, "bytes of results that this server keeps in its own memory")
    store_namespace: str = _option("timebound", NAME, "first part of the name of every key in Redis")
    store_lease: float = _option(
        2.0,
        seconds(0.2, 600),
        "seconds after which other servers take over the requests of a server whose machine died, or half of the "
        "shortest deadline if that is less, but never less than 0.5; of one whose process died within half a second",
    )
    store_patience: float = _option(
        0.1,
        seconds(0.001, 10),
        "seconds to wait for an answer of Redis; after that requests are answered without it until it is back",
    )
    admin_token: str | None = _option(
        None,
        TEXT,
        "secret that the operator's calls must show (reload, traffic, listing results); without one they are answered "
        "only to the timebound command on this machine, for the user who runs the server",
        is_secret=True,
        unset="none",
    )
    recycle_memory: int | None = _option(
        None,
        SIZE,
        "replace a worker that holds more bytes of memory than this; the new worker is ready before the old one stops",
        unset="never",
    )
    recycle_after: float | None = _option(
        None,
        seconds(1, 10**7),
        "replace a worker that has run for so many seconds; the new worker is ready before the old one stops",
        unset="never",
    )
    recycle_requests: int | None = _option(
        None,
        whole(1, 10**12),
        "replace a worker that has computed so many requests; the new worker is ready before the old one stops",
        unset="never",
    )
    load_timeout: float = _option(
        300.0,
        seconds(1, 86_400),
        "seconds a worker may take to load and answer its warm-up run; after that it is ended, and a reload has failed",
    )
    watch: bool = _option(False, TRUTH, "load code and models again when their files change")
    keys: str | None = _option(
        None,
        TEXT,
        "TOML file of API keys, made by `timebound keys new NAME`; requests must then show a key of this file",
        unset="none",
    )
    open_metrics: bool = _option(False, TRUTH, "answer /metrics without an API key, also where --keys is given")
    tls_cert: str | None = _option(
        None, TEXT, "file with the certificate chain (PEM) for HTTPS; needs --tls-key", unset="none"
    )
    tls_key: str | None = _option(
        None, TEXT, "file with the private key (PEM) that belongs to --tls-cert", unset="none"
    )
    cors_origins: str | None = _option(
        None,
        ORIGINS,
        "other web sites whose pages may read answers: https://example.org, several separated by commas, or * for all",
        unset="none",
    )
    trusted_proxies: str | None = _option(
        None,
        PROXIES,
        "addresses and networks of proxies that are believed about when a request came (X-Request-Start) and from whom "
        "(X-Forwarded-For), separated by commas, such as 10.0.0.0/8,::1; unix stands for Unix sockets",
        unset="none",
    )
    proxy_protocol: bool = _option(
        False,
        TRUTH,
        "connections of --trusted-proxies begin with the client's address, by PROXY protocol version 1 or 2",
    )
    reuse_port: bool = _option(False, TRUTH, "let several servers on this machine listen on the same port")
    max_body: int = _option(10_000_000, SIZE, "largest request body in bytes; larger ones are refused (413)")
    max_held: int | None = _option(
        None,
        SIZE,
        "bytes of large bodies and unread answers that may be in memory together; more are refused (503). "
        "If not given: 256 MB, or four times --max-body if that is more",
        unset=AT_START,
    )
    max_batch_bytes: int = _option(
        64_000_000, SIZE, "bytes of request bodies in one batch; a larger body gets a batch of its own"
    )
    max_header: int = _option(32_768, SIZE, "bytes of request line and headers together; longer ones are refused (431)")
    max_connections: int = _option(4096, whole(1, 10**6), "open connections; more are turned away (503)")
    max_per_address: int = _option(
        1024, whole(1, 10**6), "open connections from one client address; more are turned away (429)"
    )
    read_timeout: float = _option(10.0, seconds(0.1, 3600), "seconds a client may take to send a whole request")
    write_timeout: float = _option(
        10.0, seconds(0.1, 3600), "seconds a client may leave its answer unread before its connection is cut"
    )
    keep_alive: float = _option(75.0, seconds(0, 3600), "seconds after which an idle connection is closed")
    drain_delay: float = _option(
        0.0,
        seconds(0, 3600),
        "seconds for which a server that is to stop still serves but is not ready, so that load balancers see it first",
    )
    grace: float = _option(
        30.0,
        seconds(0, 3600),
        "seconds that accepted requests are given to finish, and answers to be read, when the server stops",
    )
    history: str | None = _option(
        None,
        TEXT,
        "folder in which the history of all requests is kept: what became of each and, for models with keep_inputs, "
        "what was sent and answered",
        unset="none is kept",
    )
    history_bytes: int = _option(1_000_000_000, SIZE, "bytes that the history may take; the oldest file goes first")
    history_age: float = _option(
        30 * 86_400.0,
        seconds(60, 10**9),
        "seconds for which the history keeps single requests; counts by minute are kept ten times as long",
    )
    access_log: bool = _option(False, TRUTH, "write one line to the log for each request")
    access_log_keys: str = _option(
        "hashed",
        one_of(*KEYS_IN_LOG),
        "how the access log shows the key of a request: hashed (equal keys look equal), plain, or none",
    )
    log_level: str = _option("info", one_of(*LEVELS), "least severe lines to log: " + ", ".join(LEVELS))
    log_format: str = _option(
        "auto", one_of(*FORMATS), "format of log lines: human, json, or auto (human on a terminal, else json)"
    )
    debug: bool = _option(False, TRUTH, "show tracebacks of mistakes in the set-up, and log at level debug")

    app: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The app's own settings; some are secrets."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def engines(self) -> dict[str, str]:
        """The engine by model; that of the name "" is for all others."""
        parts = [part.rpartition("=") for part in self.engine.split(",")] if self.engine else []
        return {name: engine for name, _, engine in parts}


def options() -> list[Field[Any]]:
    """The options in order; `metadata` holds `form`, `help`, `is_secret` and `unset`."""
    return [f for f in fields(Config) if "help" in f.metadata]


def default_of(option: Field[Any]) -> Any:
    """The default of an option."""
    assert option.default is not MISSING
    return option.default


def shown_default(option: Field[Any]) -> str:
    """The default of an option as people read it; where there is none, what holds instead."""
    default = default_of(option)
    if default is None:
        return str(option.metadata["unset"])
    return str(default).lower() if isinstance(default, bool) else str(default)


def resolve(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    folder: Path | None,
    served: Path | None = None,
    *,
    app: Sequence[str] = (),
) -> Config:
    """The configuration for a server started in `folder`, serving the folder `served` if it is one.

    Without a folder no files are read. `app` are settings of the app itself, as name=value.

    Raises `SetupError` naming the value and its source.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, found in settings(flags, environment, folder, served).items():
        sources[name], values[name] = found[0]
    own = app_settings.read(app, environment, folder, served)
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
    flags: Mapping[str, Any], environment: Mapping[str, str], folder: Path | None, served: Path | None = None
) -> dict[str, list[tuple[str, Any]]]:
    """By option, where it is set and to what; the first one counts, and the others are left as they are written."""
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("flag", flags),
        ("environment", _from_environment(environment, "environment")),
    ]
    if folder is not None:
        layers.append((".env", _from_environment(dotenv(folder / ".env"), ".env")))
        layers.append((FILE, _from_toml(folder / FILE)))
    if served is not None and folder is not None and served.resolve() != folder.resolve():
        layers.append((str(served / FILE), _from_toml(served / FILE)))
    found: dict[str, list[tuple[str, Any]]] = {}
    for option in options():
        for source, layer in layers:
            value = layer.get(option.name)
            if value is not None:
                places = found.setdefault(option.name, [])
                places.append((source, value if places else _parsed(option, value, source)))
    return found


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
        name = "--" + option.name.replace("_", "-") if source == "flag" else option.name
        raise SetupError(f"{name} is {shown} ({source}); it must be {form.wanted}") from None


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
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(known)}"
            raise SetupError(f"{path}: unknown option {name!r}; {hint}")
    return table

"""Every option once: name, default, meaning. Flags, environment, files and the docs table derive from it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from timebound.config.values import (
    ADDRESSES,
    DEVICE,
    ENGINE,
    LOOPBACK,
    MODE,
    NAME,
    ORIGINS,
    PAIRS,
    PROXIES,
    SIZE,
    STORE,
    TEXT,
    TRUTH,
    WEB,
    Form,
    one_of,
    seconds,
    share,
    whole,
)
from timebound.types import CHANNELS_LAST, COMPILE, DTYPES, ENGINES, OWN

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "human", "json")
KEYS_IN_LOG = ("hashed", "plain", "none")

MOST_WORKERS = 256

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
        "loopback address, as host:port, where every caller has admin rights without a token: only for machines that "
        "nobody else uses",
        unset="none",
    )
    workers: int | None = _option(
        None,
        whole(1, MOST_WORKERS),
        "number of worker processes, which hold the models and compute batches",
        unset=AT_START,
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
    torch: str | None = _option(
        None,
        MODE,
        f"how networks of torch compute where their class does not say: {', '.join(DTYPES)}, {CHANNELS_LAST}, "
        f"{COMPILE}, joined by +, such as bfloat16+compile, or {OWN}; for single models write model=bfloat16, "
        "separated by commas",
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
    max_batch: int | None = _option(
        None,
        whole(1, 4096),
        "requests that are computed together at most, whatever the models' own max_batch says; a smaller one stays",
        unset="each model's own",
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
        "seconds a worker may take to load and answer its warm-up run; after that it is ended, and a reload has failed."
        " While it says how far it is with capturing for a GPU it may take up to six times as long",
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
        "bytes of large bodies and unread answers that may be in memory together; more are refused (503)",
        unset="256 MB, or four times --max-body if that is more",
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
    traces: str | None = _option(
        None,
        WEB,
        "OpenTelemetry collector that gets traces by OTLP over HTTP, as a URL such as http://127.0.0.1:4318",
        unset="no traces",
    )
    trace_sample: float = _option(
        0.01,
        share(0, 1),
        "share of the requests that are traced, besides those whose caller traces them and all that got less than the "
        "full answer",
    )
    trace_headers: str | None = _option(
        None,
        PAIRS,
        "headers for the collector, as name=value, several separated by commas",
        is_secret=True,
        unset="none",
    )
    trace_service: str = _option("timebound", TEXT, "the name of this service in traces")
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

    @property
    def least_logged(self) -> str:
        """The level of the least severe lines to log."""
        return "debug" if self.debug else self.log_level

    @property
    def logs_json(self) -> bool:
        """Whether log lines are JSON: as the option says, else by whether a person is watching."""
        return self.log_format == "json" or (self.log_format == "auto" and not sys.stderr.isatty())

    app: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The app's own settings; some are secrets."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def engines(self) -> dict[str, str]:
        """The engine by model; that of the name "" is for all others."""
        return _by_model(self.engine)

    @property
    def modes(self) -> dict[str, str]:
        """How networks of torch compute, by model; that of the name "" is for all others."""
        return _by_model(self.torch)


def _by_model(written: str | None) -> dict[str, str]:
    parts = [part.rpartition("=") for part in written.split(",")] if written else []
    return {name: chosen for name, _, chosen in parts}


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

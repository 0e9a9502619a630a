"""Where a Redis is, read from its URL."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from timebound.errors import SetupError

SCHEMES = ("redis", "rediss", "unix", "redis-cluster", "rediss-cluster")
_ESCAPE = "and in a password / as %2F, ? as %3F, # as %23"
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile")
_OPTIONS = ("db", "password_file", *_TLS_OPTIONS)


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis: `path` of a Unix socket, or `host` and `port`; `shown` is its URL without the password.

    `others` are further nodes of the same cluster, each a host and a port, to begin with if the first is away.
    """

    shown: str
    host: str = ""
    port: int = 6379
    path: str | None = None
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    password_file: str | None = None
    others: tuple[tuple[str, int], ...] = ()
    tls_files: tuple[tuple[str, str], ...] = ()
    """The options about TLS as they were given, for a client that makes its own context."""

    @property
    def login(self) -> tuple[str, str] | None:
        """User and password as they are now: a password file is read each time, so a new one counts from then on.

        Raises `OSError` if that file cannot be read.
        """
        password = self.password
        if self.password_file is not None:
            password = Path(self.password_file).read_text().strip()
        return None if password is None else (self.user or "default", password)


def read_address(url: str) -> Address:
    """The address in a URL such as redis://:password@host:6379/0; raises `SetupError`.

    rediss:// speaks TLS, unix:///path/to/socket?db=0 a Unix socket; redis-cluster:// and rediss-cluster:// may name
    several nodes, separated by commas. TLS takes the options that redis-py has: ssl_ca_certs, ssl_certfile,
    ssl_keyfile, ssl_cert_reqs=none. password_file=/path is read at each connection.
    """
    url, others = _apart(url)
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:  # its text may hold a part of the password
        raise SetupError(f"the store's URL cannot be read; write redis://host:6379/0, {_ESCAPE}") from None
    if parts.scheme not in SCHEMES:
        raise SetupError(f"the store is a {parts.scheme or 'nameless'} URL; give memory, none, or redis://host:6379/0")
    is_socket = parts.scheme == "unix"
    if parts.fragment or (not is_socket and "@" in parts.path + parts.query):
        raise SetupError(f"the store's URL cannot be read; write redis://host:6379/0, {_ESCAPE}")
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    for name in options:
        if name not in _OPTIONS:
            raise SetupError(f"the store's URL has an unknown option {name!r}; known are {', '.join(_OPTIONS)}")
    if is_socket and (parts.hostname or parts.path in ("", "/")):
        raise SetupError("the store's URL names no socket; write unix:///path/to/socket")
    if parts.password and options.get("password_file"):
        raise SetupError("the store's URL has a password and a password_file; give one of them")
    database = options.get("db") or ("0" if is_socket else parts.path.strip("/") or "0")
    if not (database.isascii() and database.isdecimal()):
        raise SetupError(f"the store's database is {database!r}; give a number: redis://host:6379/0")
    is_cluster = parts.scheme.endswith("-cluster")
    if is_cluster and int(database):
        raise SetupError(f"the store's database is {database}; a cluster has only database 0")
    host = parts.hostname or "127.0.0.1"
    where = parts.path if is_socket else f"{f'[{host}]' if ':' in host else host}:{port}/{database}"
    return Address(
        f"{parts.scheme}://{where}",
        host,
        port,
        unquote(parts.path) if is_socket else None,
        int(database),
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
        _tls(options) if parts.scheme.startswith("rediss") else None,
        options.get("password_file"),
        others,
        tuple((name, options[name]) for name in _TLS_OPTIONS if name in options),
    )


def _apart(url: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """The URL with the first node alone, and the others of a cluster."""
    scheme, found, rest = url.partition("://")
    place, separator, tail = rest.partition("/")
    login, at, hosts = place.rpartition("@")
    if not found or not scheme.endswith("-cluster") or "," not in hosts:
        return url, ()
    first, *others = hosts.split(",")
    try:
        nodes = [urlsplit(f"redis://{other}") for other in others]
        return f"{scheme}://{login}{at}{first}{separator}{tail}", tuple(
            (n.hostname or "", n.port or 6379) for n in nodes
        )
    except ValueError:
        raise SetupError(
            f"the store's URL cannot be read; write redis-cluster://host:6379,host2:6379, {_ESCAPE}"
        ) from None


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if options.get("ssl_certfile"):
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    except (OSError, ssl.SSLError) as error:
        raise SetupError(
            f"the store's TLS files cannot be used: {error}; check ssl_ca_certs and ssl_certfile"
        ) from None
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

"""Where a Redis is, read from its URL."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from timebound.errors import SetupError

SCHEMES = ("redis", "rediss", "unix")
_OPTIONS = ("db", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis: `path` of a Unix socket, or `host` and `port`; `shown` is its URL without the password."""

    shown: str
    host: str = ""
    port: int = 6379
    path: str | None = None
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


def read_address(url: str) -> Address:
    """The address in a URL such as redis://:password@host:6379/0; raises `SetupError`.

    rediss:// speaks TLS, unix:///path/to/socket?db=0 a Unix socket. TLS takes the options that redis-py has:
    ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_cert_reqs=none.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError as error:
        raise SetupError(f"the store's URL cannot be read: {error}; write redis://host:6379/0") from None
    if parts.scheme not in SCHEMES:
        raise SetupError(f"the store is a {parts.scheme or 'nameless'} URL; give memory, none, or redis://host:6379/0")
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    for name in options:
        if name not in _OPTIONS:
            raise SetupError(f"the store's URL has an unknown option {name!r}; known are {', '.join(_OPTIONS)}")
    is_socket = parts.scheme == "unix"
    database = options.get("db") or ("0" if is_socket else parts.path.strip("/") or "0")
    if not database.isdigit():
        raise SetupError(f"the store's database is {database!r}; give a number: redis://host:6379/0")
    where = parts.path if is_socket else f"{parts.hostname or '127.0.0.1'}:{port}/{database}"
    return Address(
        f"{parts.scheme}://{where}",
        parts.hostname or "127.0.0.1",
        port,
        unquote(parts.path) if is_socket else None,
        int(database),
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
        _tls(options) if parts.scheme == "rediss" else None,
    )


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

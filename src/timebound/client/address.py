"""Where servers are, as a client's URLs say it, and what a TLS connection to them believes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from timebound.errors import SetupError

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

_PORTS = {"http": 80, "https": 443}


class Address(msgspec.Struct, frozen=True):
    """One server; `prefix` is what comes before every path, where a proxy serves it below one."""

    url: str
    host: str
    port: int
    is_tls: bool
    prefix: str
    host_header: str


def read_address(url: str) -> Address:
    """The address in an http:// or https:// URL; raises `SetupError` if it has none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SetupError(f"{url} is no URL: {error}; write http://host:8000") from None
    if parts.scheme not in _PORTS or not host:
        raise SetupError(f"{url} is no address of a server; write http://host:8000")
    if "@" in parts.netloc:
        raise SetupError("a URL with a name or a password in it is not taken; give the API key with api_key=")
    if parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise SetupError(f"{url} holds more than an address; write http://host:8000")
    is_tls = parts.scheme == "https"
    return Address(url.rstrip("/"), host, port or _PORTS[parts.scheme], is_tls, parts.path.rstrip("/"), parts.netloc)


def tls_context(*, verify: bool, ca: str | Path | None) -> ssl.SSLContext:
    """What to believe: the system's authorities, those in a file or folder, or (`verify=False`) anybody."""
    import ssl  # 20 ms that plain HTTP need not pay

    is_folder = ca is not None and os.path.isdir(ca)
    file, folder = (None, ca) if is_folder else (ca, None)
    try:
        context = ssl.create_default_context(cafile=file, capath=folder)
    except OSError as error:
        raise SetupError(f"ca={str(ca)!r} cannot be read as certificates: {error.strerror or error}") from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

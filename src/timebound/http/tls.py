"""The certificate for HTTPS, read again without a restart."""

from __future__ import annotations

import ssl
from pathlib import Path

from timebound.errors import SetupError


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate (chain) and key; raises `SetupError` if they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        for file in map(Path, (certificate, key)):
            if file.exists() and not file.is_file():  # a pipe would be waited for, and everything with it
                raise SetupError(
                    f"the TLS file {file} is no regular file; give files that hold certificate and key as PEM"
                )
        # A key with a passphrase would ask for it on the terminal; a server must not wait there.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:  # ssl.SSLError is one too
        raise SetupError(
            f"the TLS files {certificate} and {key} cannot be used: {error.strerror or error}; give a certificate and "
            "its key without a passphrase, both as PEM"
        ) from None
    return context


class Tls:
    """A certificate and its key, and the context that every connection gets."""

    def __init__(self, certificate: str, key: str) -> None:
        self._files = certificate, key
        self.context = tls_context(certificate, key)

    def read_again(self) -> None:
        """Use the files as they are now for new connections; raises `SetupError`, and the old ones stay in use."""
        tls_context(*self._files)  # tried on a context that nobody uses: half a change would end all handshakes
        self.context.load_cert_chain(*self._files)

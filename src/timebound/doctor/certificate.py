"""Checks of the certificate for HTTPS: that its key belongs to it, until when it holds, and for which names."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

from timebound.config import Config
from timebound.doctor.finding import Finding, ok, problem, warning
from timebound.errors import SetupError
from timebound.http.tls import tls_context

_DAYS_BEFORE = 21
"""A certificate that ends sooner should have been renewed by now: they are renewed a month before, as a rule."""
_DAY_S = 86_400.0


def check_certificate(config: Config, now: float) -> Iterator[Finding]:
    """All about the certificate, if there is one; `now` is in seconds since 1970."""
    if config.tls_cert is None or config.tls_key is None:
        return
    try:
        facts = shown_by(tls_context(config.tls_cert, config.tls_key), config.tls_cert)
    except SetupError as error:  # also if the key is another one's
        yield problem("certificate", str(error))
        return
    except ssl.SSLCertVerificationError as error:
        cure = "renew it, then `timebound reload`"
        yield problem("certificate", f"{config.tls_cert} does not hold: {error.verify_message}", cure)
        return
    names = ", ".join(value for kind, value in facts.get("subjectAltName", ()) if kind in ("DNS", "IP Address"))
    days = (ssl.cert_time_to_seconds(facts["notAfter"]) - now) / _DAY_S
    text = f"for {names or 'no name'}, until {facts['notAfter']} ({days:.0f} days)"
    if days < _DAYS_BEFORE:
        yield warning("certificate", text, "renew it, then `timebound reload`: no restart is needed")
    elif not names:
        yield warning("certificate", text, "have it made with subjectAltName: clients look for their name there")
    else:
        yield ok("certificate", text)


def shown_by(server: ssl.SSLContext, certificate: str) -> dict[str, Any]:
    """What a client is shown, found out by a handshake in memory; raises `ssl.SSLCertVerificationError` if it is over.

    The certificate is trusted here whoever has signed it: that is for each client to decide.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cafile=certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    waiting = list(sides)
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    return dict(sides[0].getpeercert() or {})

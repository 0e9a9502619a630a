"""`timebound reload`, `traffic` and `rollback`: what the operator asks of a running server."""

from __future__ import annotations

import argparse
import os
from typing import Any

import msgspec

from timebound.cli.running import Running
from timebound.cli.verb import declare
from timebound.errors import SetupError


def add_to(verbs: Any) -> None:
    """Declare the verbs and their flags."""
    reload = declare(verbs, "reload", "load code and models again, without losing a request")
    reload.set_defaults(run=lambda chosen: _show(_ask(chosen, "POST", "/v1/reload")))
    traffic = declare(verbs, "traffic", "divide a model's requests among its versions, or show how they are")
    rollback = declare(verbs, "rollback", "divide a model's requests as before the last change", examples="traffic")
    for verb in (reload, traffic, rollback):
        verb.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (default: %(default)s)")
        token = "the admin token of the server (default: TIMEBOUND_ADMIN_TOKEN)"
        verb.add_argument("--admin-token", default=os.environ.get("TIMEBOUND_ADMIN_TOKEN"), help=token)
    for verb in (traffic, rollback):
        verb.add_argument("model", help="name of the model's folder")
    shares = "versions and their shares, such as 1=90 2=10 (any numbers); without shares the division is shown"
    traffic.add_argument("shares", nargs="*", metavar="VERSION=SHARE", help=shares)
    copies = "version that gets a copy of every request; its answers are only compared; may be repeated"
    traffic.add_argument("--shadow", action="append", default=[], metavar="VERSION", help=copies)
    traffic.set_defaults(run=_divide)
    rollback.set_defaults(run=lambda chosen: _show(_ask(chosen, "POST", f"/v1/models/{chosen.model}/rollback")))


def _divide(chosen: argparse.Namespace) -> int:
    path = f"/v1/models/{chosen.model}/traffic"
    if not chosen.shares:
        if chosen.shadow:
            raise SetupError("--shadow needs the shares too, such as: 1=100 --shadow 2")
        return _show(_ask(chosen, "GET", path))
    split: dict[str, float] = {}
    for text in chosen.shares:
        version, _, share = text.partition("=")
        try:
            split[version] = float(share)
        except ValueError:
            raise SetupError(f"{text!r} is no share; write VERSION=SHARE, such as 2=10") from None
    body = {"split": split, "shadow": chosen.shadow}
    return _show(_ask(chosen, "PUT", path, body))


def _ask(chosen: argparse.Namespace, method: str, path: str, body: Any = None) -> Any:
    token = {"Authorization": f"Bearer {chosen.admin_token}"} if chosen.admin_token else {}
    answer = Running(chosen.url, token).ask(method, path, body)
    if answer.status != 200:
        raise SetupError(answer.detail)
    return msgspec.json.decode(answer.body)


def _show(answer: Any) -> int:
    if "models" in answer:
        print("serving " + ", ".join(answer["models"]))
        return 0
    for version, share in answer["split"].items():
        print(f"version {version}: {share:.1%}")
    for version in answer.get("shadow", []):
        print(f"version {version}: copies, compared")
    return 0

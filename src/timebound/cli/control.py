"""`timebound reload`, `traffic` and `rollback`: what the operator asks of a running server."""

from __future__ import annotations

import argparse
import os
from typing import Any

import msgspec

from timebound.cli.compared import show_versions
from timebound.cli.everywhere import reload_all
from timebound.cli.running import Running
from timebound.cli.verb import declare
from timebound.errors import SetupError

_BACK = (
    "Divide a model's requests among its versions as before the last change. Each further call goes back one change "
    "more, and to the next older version where no change is known; `timebound traffic` goes forward again."
)


def add_to(verbs: Any) -> None:
    """Declare the verbs and their flags."""
    reload = declare(verbs, "reload", "load code and models again, without losing a request")
    everywhere = (
        "reload several servers and tell what each said: addresses separated by commas, names with several included"
    )
    reload.add_argument("--all", metavar="ADDRESSES", help=everywhere)
    reload.set_defaults(run=_reload)
    traffic = declare(verbs, "traffic", "divide a model's requests among its versions, or show how they are")
    rollback = declare(verbs, "rollback", "divide a model's requests as before the last change", _BACK, "traffic")
    for verb in (reload, traffic, rollback):
        verb.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (default: %(default)s)")
        token = "the admin token of the server, if it has one (default: TIMEBOUND_ADMIN_TOKEN)"
        verb.add_argument("--admin-token", default=os.environ.get("TIMEBOUND_ADMIN_TOKEN"), help=token)
    for verb in (traffic, rollback):
        verb.add_argument("model", help="name of the model's folder")
    shares = "versions and their shares, such as 1=90 2=10 (any numbers); without shares the division is shown"
    traffic.add_argument("shares", nargs="*", metavar="VERSION=SHARE", help=shares)
    copies = "version that gets a copy of every request; its answers are only compared; may be repeated"
    traffic.add_argument("--shadow", action="append", default=[], metavar="VERSION", help=copies)
    compare = "say how the versions differ since they were last divided: in time, speed, confidence, labels"
    traffic.add_argument("--compare", action="store_true", help=compare)
    traffic.set_defaults(run=_divide)
    rollback.set_defaults(run=lambda chosen: _ask(chosen, "POST", f"/v1/models/{chosen.model}/rollback"))


def _reload(chosen: argparse.Namespace) -> int:
    if chosen.all is None:
        return _ask(chosen, "POST", "/v1/reload")
    return reload_all(chosen.all, _token(chosen))


def _divide(chosen: argparse.Namespace) -> int:
    path = f"/v1/models/{chosen.model}/traffic"
    if chosen.compare:
        if chosen.shares:
            raise SetupError("--compare shows what there is; leave the shares out")
        return _compare(chosen)
    if not chosen.shares:
        if chosen.shadow:
            raise SetupError("--shadow needs the shares too, such as: 1=100 --shadow 2")
        return _ask(chosen, "GET", path)
    split: dict[str, float] = {}
    for text in chosen.shares:
        version, _, share = text.partition("=")
        try:
            split[version] = float(share)
        except ValueError:
            raise SetupError(f"{text!r} is no share; write VERSION=SHARE, such as 2=10") from None
    return _ask(chosen, "PUT", path, {"split": split, "shadow": chosen.shadow})


def _compare(chosen: argparse.Namespace) -> int:
    answer = Running(chosen.url, _token(chosen)).ask("GET", "/v1/live/versions")
    if answer.status != 200:
        raise SetupError(answer.detail)
    found = [told for told in msgspec.json.decode(answer.body)["models"] if told["model"] == chosen.model]
    if not found:
        raise SetupError(f"{chosen.model} has no two versions that get requests; timebound traffic divides them")
    show_versions(found[0])
    return 0


def _token(chosen: argparse.Namespace) -> dict[str, str]:
    return {"Authorization": f"Bearer {chosen.admin_token}"} if chosen.admin_token else {}


def _ask(chosen: argparse.Namespace, method: str, path: str, body: Any = None) -> int:
    """Ask the server, and show what it serves then or how it divides."""
    answer = Running(chosen.url, _token(chosen)).ask(method, path, body)
    if answer.status != 200:
        raise SetupError(answer.detail)
    now = msgspec.json.decode(answer.body)
    if "models" in now:
        print("serving " + ", ".join(now["models"]))
        return 0
    for version, share in now["split"].items():
        print(f"version {version}: {share:.1%}")
    for version in now.get("shadow", []):
        print(f"version {version}: copies, compared")
    return 0

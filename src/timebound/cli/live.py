"""`timebound live`: an address of the live page that a browser may open, until the server stops."""

from __future__ import annotations

import argparse
import os
import webbrowser
from typing import Any

import msgspec

from timebound.cli.running import Running
from timebound.cli.verb import declare
from timebound.errors import SetupError


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    live = declare(verbs, "live", "print an address at which a browser shows what the server does, and why")
    live.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (default: %(default)s)")
    token = "the admin token of the server, if it has one (default: TIMEBOUND_ADMIN_TOKEN)"
    live.add_argument("--admin-token", default=os.environ.get("TIMEBOUND_ADMIN_TOKEN"), help=token)
    live.add_argument("--open", action="store_true", help="open the address in the browser of this machine")
    live.set_defaults(run=_live)


def _live(chosen: argparse.Namespace) -> int:
    headers = {"Authorization": f"Bearer {chosen.admin_token}"} if chosen.admin_token else {}
    answer = Running(chosen.url, headers).ask("POST", "/v1/live/pass")
    if answer.status != 200:
        raise SetupError(answer.detail)
    # After the #: browsers keep that to themselves, so the pass is in no log of a proxy.
    address = f"{chosen.url.rstrip('/')}/live#pass={msgspec.json.decode(answer.body)['pass']}"
    print(address)
    if chosen.open:
        webbrowser.open(address)
    return 0

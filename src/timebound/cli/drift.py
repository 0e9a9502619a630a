"""`timebound drift`: do models still say what they used to? Of a running server, or of the files of a history."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from timebound.cli.running import Running
from timebound.cli.verb import declare
from timebound.errors import RequestError, SetupError
from timebound.observe.filter import filter_of
from timebound.observe.history import History
from timebound.observe.replayed import replay

_ABOUT = (
    "Compare how sure answers are, their labels and the size of what is sent with the first 5,000 answers. Without a "
    "folder a running server is asked; with one, the history in it is gone through from its beginning."
)


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    drift = declare(verbs, "drift", "say whether models still answer as they used to", _ABOUT)
    drift.add_argument("folder", nargs="?", type=Path, help="folder of a history, as given to serve with --history")
    drift.add_argument("--model", default="", help="only this model")
    drift.add_argument("--learn", metavar="MODEL", help="take what this model answers from now on as usual, and exit")
    drift.add_argument("--json", action="store_true", help="print JSON")
    drift.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (default: %(default)s)")
    token = "the admin token of the server, if it has one (default: TIMEBOUND_ADMIN_TOKEN)"
    drift.add_argument("--admin-token", default=os.environ.get("TIMEBOUND_ADMIN_TOKEN"), help=token)
    drift.set_defaults(run=_drift)


def _drift(chosen: argparse.Namespace) -> int:
    if chosen.learn is not None:
        if chosen.folder is not None:
            raise SetupError("--learn is for a running server; leave the folder out")
        _asked(chosen, "POST", f"/v1/live/drift/{chosen.learn}/learn")
        print(f"what {chosen.learn} answers from now on is learned as usual")
        return 0
    found = _of_folder(chosen) if chosen.folder is not None else _asked(chosen, "GET", "/v1/live/drift")
    versions = [told for told in found["versions"] if chosen.model in ("", told["model"])]
    if chosen.json:
        print(msgspec.json.format(msgspec.json.encode({**found, "versions": versions}), indent=2).decode())
        return 0
    _print(versions)
    for alarm in found.get("alarms", ()):
        print(_sentence(alarm))
    return 0


def _of_folder(chosen: argparse.Namespace) -> dict[str, Any]:
    if not chosen.folder.is_dir():
        raise SetupError(f"{chosen.folder} is no folder; name the one that the server was given with --history")
    try:
        wanted = filter_of({"model": chosen.model})
    except RequestError as error:
        raise SetupError(error.detail) from None
    streams, alarms = replay(History(chosen.folder).each(wanted))
    return {"versions": streams.report(), "alarms": msgspec.to_builtins(alarms)}


def _asked(chosen: argparse.Namespace, method: str, path: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {chosen.admin_token}"} if chosen.admin_token else {}
    answer = Running(chosen.url, headers).ask(method, path)
    if answer.status not in (200, 202):
        raise SetupError(answer.detail)
    found: dict[str, Any] = msgspec.json.decode(answer.body)
    return found


def _print(versions: list[dict[str, Any]]) -> None:
    if not versions:
        print("no full answer was computed yet", file=sys.stderr)
        return
    print(
        f"{'model':20} {'version':8} {'signal':11} {'state':>9} {'compared':>10} {'now':>10} {'usual':>10} {'psi':>6}"
    )
    for told in versions:
        for one in told["signals"]:
            front = f"{told['model']:20.20} {told['version']:8.8} {one['signal']:11} {one['state']:>9}"
            if one["state"] == "learning":
                print(f"{front} {one['learned']:,} of {one['of']:,} answers")
            else:
                name = f"  {one['what']}" if one["signal"] == "label" else ""
                print(f"{front} {one['seen']:10,} {one['now']:10.4g} {one['usual']:10.4g} {one['psi']:6.3f}{name}")
        if told.get("is_paused"):
            print(f"{told['model']}: too many requests get less than a full answer; none counts until that is over")
    for told in versions:
        for one in told["signals"]:
            if one["state"] == "drifting" and one["last_alarm"] is not None:
                print(_sentence(one["last_alarm"]))


def _sentence(alarm: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(alarm["at"]))
    who = f"{alarm['model']} {alarm['version']}".rstrip()
    if alarm["signal"] == "label":
        what = f"the share of {alarm['what']} is {alarm['now']:.1%}, usually {alarm['usual']:.1%}"
    else:
        how = "spread otherwise" if alarm["what"] == "spread" else alarm["what"]
        what = f"{alarm['signal']} is {how}: {alarm['now']:.4g}, usually {alarm['usual']:.4g}"
    return f"{when}  {who}: {what} (after {alarm['after']:,} answers)"

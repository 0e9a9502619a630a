"""`timebound results`: look at the results that are kept by key, or have them forgotten."""

from __future__ import annotations

import argparse
import base64
import os
import sys
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from timebound.cli.kept import Found, InRedis, InServer, Shelf
from timebound.cli.verb import configuration, declare
from timebound.errors import RequestError, SetupError


def add_to(verbs: Any) -> None:
    """Declare the verb, what it can do and its flags."""
    parser = declare(verbs, "results", "show, list or delete results that are kept by key")
    parser.set_defaults(run=lambda chosen: _show_help(parser))
    actions = parser.add_subparsers(title="actions", metavar="ACTION", parser_class=type(parser))
    get = declare(actions, "get", "show one result", examples="results_get")
    get.add_argument("model", help="name of the model")
    get.add_argument("key", help="key of the request")
    own = "API key of a client, to read its own results (default: TIMEBOUND_API_KEY)"
    get.add_argument("--api-key", metavar="KEY", help=own)
    get.set_defaults(usual_api_key=os.environ.get("TIMEBOUND_API_KEY"))
    ls = declare(actions, "ls", "list the results that are kept", examples="results_ls")
    several = "delete one result, all results of a model, or everything"
    clear = declare(actions, "clear", several, examples="results_clear")
    for operators in (ls, clear):
        operators.add_argument("model", nargs="?", help="name of the model; all models if left out")
        operators.set_defaults(api_key=None, usual_api_key=None)
    clear.add_argument("key", nargs="?", help="key of the request; all results of the model if left out")
    clear.add_argument("--yes", action="store_true", help="confirm that more than one result is deleted")
    for action, run in ((get, _get), (ls, _ls), (clear, _clear)):
        _add_options(action)
        action.set_defaults(run=lambda chosen, run=run: run(_shelf(chosen), chosen))


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help="the server to ask (default: http://127.0.0.1:8000)")
    parser.add_argument("--admin-token", metavar="TOKEN", help="the server's admin token")
    parser.add_argument(
        "--store", metavar="URL", help="read this Redis in place of asking a server, such as redis://host:6379/0"
    )
    parser.add_argument(
        "--store-namespace", metavar="NAME", help="first part of the keys in that Redis (default: timebound)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _shelf(chosen: argparse.Namespace) -> Shelf:
    flags = {name: getattr(chosen, name) for name in ("admin_token", "store", "store_namespace")}
    config = configuration(flags)
    if chosen.store is None:
        url = chosen.url or f"http://127.0.0.1:{config.port or 8000}"
        return InServer(url, config.admin_token, chosen.api_key or chosen.usual_api_key)
    if chosen.api_key is not None:
        raise SetupError("--api-key is shown to a server; a Redis has every client's results, under NAME:KEY")
    if chosen.url is not None:
        raise SetupError("--url and --store are two places; give one of them")
    if config.store in ("memory", "none"):
        raise SetupError("results in memory are in their server; ask it with --url")
    return InRedis(replace(config, store_patience=5.0))  # nobody's deadline depends on it


def _get(shelf: Shelf, chosen: argparse.Namespace) -> int:
    found = shelf.get(chosen.model, chosen.key)
    if chosen.json:
        _print_json({"model": chosen.model, "key": chosen.key, **_facts(found), **_body(found)})
        return 0
    facts = {"model": chosen.model, "key": _visible(chosen.key), **_facts(found), "finished_at": _moment(found.at)}
    for name, value in facts.items():
        print(f"{name:12} {value}")
    sys.stdout.flush()
    sys.stdout.buffer.write(b"\n" + found.body + b"\n")
    return 0


def _ls(shelf: Shelf, chosen: argparse.Namespace) -> int:
    found = shelf.ls(chosen.model)
    if chosen.json:
        _print_json({"results": found.entries, "is_complete": found.is_complete})
        return 0
    rows = [("model", "key", "quality", "bytes", "finished", "expires in")]
    for entry in found.entries:
        left = f"{entry.expires_in_s:.0f} s"
        rows.append((entry.model, _visible(entry.key), entry.quality, str(entry.bytes), _moment(entry.at), left))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    if not found.is_complete:
        print(f"... the first {len(found.entries)}; name a model to see its own", file=sys.stderr)
    return 0


def _clear(shelf: Shelf, chosen: argparse.Namespace) -> int:
    if chosen.model == "" or chosen.key == "":
        raise SetupError("the model or key is empty; leave it out to clear all of them")
    if chosen.key is None and not chosen.yes:
        what = "every result there is" if chosen.model is None else f"every result of {chosen.model!r}"
        raise SetupError(f"this deletes {what}, for all servers that share them; add --yes if that is meant")
    count = shelf.clear(chosen.model, chosen.key)
    if chosen.json:
        _print_json({"cleared": count})
    elif count or chosen.key is None:
        print(f"cleared {count}")
    if chosen.key is not None and not count:
        raise RequestError(f"no result of {chosen.model!r} is kept under the key {chosen.key!r}")
    return 0


def _facts(found: Found) -> dict[str, Any]:
    return {"quality": found.quality, "members": found.members, "finished_at": found.at, "media": found.media}


def _body(found: Found) -> dict[str, Any]:
    if found.media.startswith("application/json"):
        return {"body": msgspec.Raw(found.body)}
    return {"body_base64": base64.b64encode(found.body).decode()}


def _visible(text: str) -> str:
    """A key as it can be shown on a terminal, whatever a client put into it."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="seconds")


def _print_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")

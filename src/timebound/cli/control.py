"""`timebound reload`, `traffic` and `rollback`: what the operator asks of a running server."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from typing import Any

from timebound.errors import RequestError, SetupError

_RELOAD = """\
examples:
  timebound reload                               load code and models again, without losing a request
  timebound reload --url http://10.0.0.5:8000 --admin-token SECRET
"""
_TRAFFIC = """\
examples:
  timebound traffic digits                       how its requests are divided now
  timebound traffic digits 1=90 2=10             a tenth of the requests to version 2
  timebound traffic digits 2=1 --shadow 3        all to version 2; 3 gets copies that are only compared
  timebound rollback digits                      divide as before the last change

Requests with a key stay with their version. /metrics counts how often a shadow agrees (timebound_shadow_answers_total).
"""


def add_to(verbs: Any) -> None:
    """Declare the verbs and their flags."""
    reload = _verb(verbs, "reload", "load code and models again, without losing a request", _RELOAD)
    reload.set_defaults(run=lambda chosen: _show(_ask(chosen, "POST", "/v1/reload")))
    traffic = _verb(verbs, "traffic", "divide a model's requests among its versions, or show how they are", _TRAFFIC)
    traffic.add_argument("model", help="name of the model's folder")
    traffic.add_argument(
        "shares",
        nargs="*",
        metavar="VERSION=SHARE",
        help="versions and their shares, such as 1=90 2=10 (any numbers); without shares the division is shown",
    )
    traffic.add_argument(
        "--shadow",
        action="append",
        default=[],
        metavar="VERSION",
        help="version that gets a copy of every request; its answers are only compared; may be repeated",
    )
    traffic.set_defaults(run=_divide)
    rollback = _verb(verbs, "rollback", "divide a model's requests as before the last change", _TRAFFIC)
    rollback.add_argument("model", help="name of the model's folder")
    rollback.set_defaults(run=lambda chosen: _show(_ask(chosen, "POST", f"/v1/models/{chosen.model}/rollback")))


def _verb(verbs: Any, name: str, meaning: str, examples: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=meaning,
        description=meaning[0].upper() + meaning[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (default: %(default)s)")
    parser.add_argument(
        "--admin-token",
        default=os.environ.get("TIMEBOUND_ADMIN_TOKEN"),
        help="the admin token of the server (default: TIMEBOUND_ADMIN_TOKEN)",
    )
    return parser


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
    headers = {"content-type": "application/json"}
    if chosen.admin_token:
        headers["authorization"] = f"Bearer {chosen.admin_token}"
    data = None if method == "GET" else json.dumps(body).encode() if body is not None else b""
    request = urllib.request.Request(chosen.url.rstrip("/") + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SetupError(_told(error)) from None
    except (urllib.error.URLError, ValueError) as error:
        raise RequestError(
            f"no server answers at {chosen.url}: {getattr(error, 'reason', error)}; give --url"
        ) from None


def _told(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError):
        return f"the server answered {error.code}"


def _show(answer: Any) -> int:
    if "models" in answer:
        print("serving " + ", ".join(answer["models"]))
        return 0
    for version, share in answer["split"].items():
        print(f"version {version}: {share:.1%}")
    for version in answer.get("shadow", []):
        print(f"version {version}: copies, compared")
    return 0

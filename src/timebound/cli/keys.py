"""`timebound keys`: make API keys. The key is shown once; what the server needs to know of it is its hash."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from timebound.admission.keys import check_name, hash_of, new_key
from timebound.cli.verb import declare


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(verbs, "keys", "make API keys", "Make API keys for `timebound serve --keys FILE`.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    shown = "Make an API key and show it once. Its lines for the keys file go to standard output."
    new = declare(actions, "new", "make an API key", shown, examples="keys")
    new.add_argument("name", help="name of the client that the key is for; it appears in metrics and logs")
    new.set_defaults(run=_new)


def _new(chosen: argparse.Namespace) -> int:
    check_name(chosen.name)
    key = new_key()
    print(f"the key of {chosen.name}, shown only now: {key}", file=sys.stderr)
    if sys.stdout.isatty():
        print("the lines of the file that `timebound serve --keys FILE` reads:\n", file=sys.stderr)
    name = f'"{chosen.name}"' if "." in chosen.name else chosen.name
    print(f'[{name}]\nhash = "{hash_of(key.encode())}"\n')
    return 0

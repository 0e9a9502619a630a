"""`timebound keys`: make API keys. The key is shown once; what the server needs to know of it is its hash."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from timebound.cli.verb import declare


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(verbs, "keys", "make API keys", "Make API keys for `timebound serve --keys FILE`.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="make a key", description="Make a key and show it, once.")
    new.add_argument("name", help="whose key it is; appears in metrics and logs")
    new.set_defaults(run=_new)


def _new(chosen: argparse.Namespace) -> int:
    # Imported late: --help answers without it.
    from timebound.admission.keys import check_name, hash_of, new_key

    check_name(chosen.name)
    key = new_key()
    print(f"the key of {chosen.name}, shown only now: {key}", file=sys.stderr)
    name = f'"{chosen.name}"' if "." in chosen.name else chosen.name
    print(f'[{name}]\nhash = "{hash_of(key.encode())}"\n')
    return 0

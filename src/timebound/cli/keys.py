"""`timebound keys`: make API keys. The key is shown once; what the server needs to know of it is its hash."""

from __future__ import annotations

import argparse
import sys
from typing import Any

_EXAMPLES = """\
examples:
  timebound keys new shop                    shows the key, and the lines for the keys file
  timebound keys new shop >> keys.toml       the same, with the lines put where they belong
  timebound serve app.py --keys keys.toml

A running server reads the file again on SIGHUP and on POST /v1/reload.
"""


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = verbs.add_parser(
        "keys",
        help="make API keys",
        description="Make API keys for `timebound serve --keys FILE`.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    new = actions.add_parser(
        "new",
        help="make an API key",
        description="Make an API key and show it once. Its lines for the keys file go to standard output.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("name", help="name of the client that the key is for; it appears in metrics and logs")
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

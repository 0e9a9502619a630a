"""What Redis says when it refuses, with the cure."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"'([^']+)' command")


def explain(error: str) -> str:
    """What Redis said, with the cure where it is known; the text as it was where it is not."""
    if error.startswith("NOPERM") and (found := _COMMAND.search(error)):
        return f"this user may not run {found[1]}; allow it with ACL SETUSER name +{found[1]}"
    if error.startswith("NOPERM"):
        what = "channels" if "channel" in error else "keys"
        sign = "&" if "channel" in error else "~"
        return f"this user may not use these {what}; allow them with ACL SETUSER name {sign}timebound:*"
    if "user executing the script can't run" in error:
        return "this user may not run all that the scripts run; allow it with ACL SETUSER name +@read +@write +@pubsub"
    if error.startswith(("NOAUTH", "WRONGPASS")) or "AUTH" in error:
        return f"{error}; give the password in the URL: redis://:password@host:6379/0"
    if "cluster support disabled" in error:
        return "it is no cluster; use redis:// in place of redis-cluster://"
    if "unknown command" in error and "HELLO" in error.upper():
        return "it is older than Redis 6; use Redis 6 or newer"
    return error

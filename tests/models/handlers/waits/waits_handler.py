"""Waits at the gate that a request names, as `tests/models/waits.py` does."""

import fcntl
import json


def handle(data, context):
    if data is None:
        return None
    asked = [row["body"] if isinstance(row["body"], dict) else json.loads(bytes(row["body"])) for row in data]
    for row in asked:
        if row.get("gate"):
            with open(row["gate"]) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
    return [{"value": row["value"]} for row in asked]

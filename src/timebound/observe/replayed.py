"""Drift in the past: the outcomes of a history, taken in as the server would have done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from timebound.observe.judged import is_servers_own
from timebound.observe.shortage import Shortage
from timebound.observe.streams import Alarm, Streams


def replay(rows: Iterable[Mapping[str, Any]]) -> tuple[Streams, list[Alarm]]:
    """What is usual by these outcomes, the oldest first, and every alarm since."""
    streams, alarms = Streams(), []
    shortage: defaultdict[str, Shortage] = defaultdict(Shortage)
    for row in rows:
        model = row["model"]
        if row["code"]:
            shortage[model].add(is_servers_own(row["status"], row["code"]))
        elif row["source"] != "computed":
            continue
        elif row["quality"] != "full":
            shortage[model].less_than_full(row["reason"])
        else:
            shortage[model].add(False)
            if not shortage[model].is_now:
                values = {"confidence": row["confidence"], "label": row["label"] or None}
                alarms += streams.add(model, row["version"], values, row["at"]).alarms
    return streams, alarms

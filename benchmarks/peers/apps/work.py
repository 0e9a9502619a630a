"""The work itself, the same in every peer: decode pictures, run three networks on the batch, name the classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.tools.seen import Seen
from benchmarks.tools.workload import Array, decode, mean_scores, model_paths, open_sessions

# As in the hand-written loop that all are held against.
WORKERS = 2
MAX_BATCH = 8
MAX_WAIT_S = 0.005
# How many a process may take that works on one picture after the other: about 14 ms each, of 250.
PLACES = 12


class Work:
    """Sessions of one process; every item it works on is written down."""

    def __init__(self) -> None:
        self._sessions = open_sessions(model_paths())
        self._seen = Seen()

    def classify(self, uuids: Sequence[str], pictures: Sequence[Array]) -> list[int]:
        """The class of each picture, found as one batch."""
        for uuid in uuids:
            self._seen.add(uuid)
        return [int(row.argmax()) for row in mean_scores(self._sessions, np.stack(pictures))]

    def answer(self, requests: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
        """Answers to whole requests; ValueError if one of them holds no picture."""
        uuids = [request["uuid"] for request in requests]
        classes = self.classify(uuids, [decode(request["image"]) for request in requests])
        return [{"uuid": uuid, "answer": answer} for uuid, answer in zip(uuids, classes, strict=True)]

"""The image ensemble with a near deadline and a fallback: fewer networks when time is short."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.serving.apps import ensemble_app
from benchmarks.tools.seen import Seen
from benchmarks.tools.workload import FALLBACK_ANSWER


class Anytime(ensemble_app.Ensemble):
    """The same three networks; what they work on is written down."""

    deadline = 0.25

    def load(self) -> None:
        super().load()
        self.seen = Seen()

    def prepare(self, request: Any) -> Any:
        self.seen.add(request.uuid)
        return super().prepare(request)

    def fallback(self, request: Any) -> Any:
        return {"uuid": request.uuid, "answer": FALLBACK_ANSWER}

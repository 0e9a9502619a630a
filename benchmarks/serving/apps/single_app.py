"""The three networks as one model, which answers in full or not at all; else as anytime_app."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.serving.apps import anytime_app
from benchmarks.tools.seen import Seen
from benchmarks.tools.workload import mean_scores, model_paths, open_sessions


class Single(anytime_app.Anytime):
    """The server is not told that there are three."""

    parallel = True  # onnxruntime releases the interpreter lock

    def load(self) -> None:
        self.sessions = open_sessions(model_paths())
        self.seen = Seen()

    def infer(self, batch: Any) -> Any:
        return mean_scores(self.sessions, batch)

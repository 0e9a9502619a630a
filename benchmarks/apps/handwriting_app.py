"""The demo's model with its networks as float32 files, and less time: what an engine can gain on trained networks."""

import sys
from pathlib import Path

import timebound as tb
from timebound.demo import app

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.floats import folder_of
from benchmarks.workload import models_folder


class Handwriting(app.Handwriting):
    """Opens the files that benchmarks/floats.py wrote."""

    deadline = 0.25

    def load(self) -> None:
        paths = [folder_of(models_folder()) / Path(file).name for file in app.FILES]
        self.net = tb.ensemble(*(tb.onnx(path) for path in paths), combine="mean")

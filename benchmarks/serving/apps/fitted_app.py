"""The image ensemble with a fitted last layer, its pictures as samples, and 250 ms."""

import sys
from pathlib import Path

import timebound as tb

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.serving.apps import ensemble_app
from benchmarks.tools.fitted import folder_of
from benchmarks.tools.workload import MODEL_FILES, load_samples, models_folder


class Fitted(ensemble_app.Ensemble):
    """Three networks of other benchmarks that know eight kinds of pictures."""

    deadline = 0.25
    samples = tuple(
        {"title": str(number), "body": {"uuid": str(number), "image": sample.image}}
        for number, sample in enumerate(load_samples(folder_of(models_folder())))
    )

    def load(self) -> None:
        paths = [folder_of(models_folder()) / name for name in MODEL_FILES]
        self.net = tb.ensemble(*(tb.onnx(path) for path in paths), combine="mean")

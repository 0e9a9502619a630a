"""The image ensemble with its pictures as samples: inputs on which engines are compared."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.serving.apps import ensemble_app
from benchmarks.tools.workload import load_samples, models_folder


class Pictured(ensemble_app.Ensemble):
    """The same three networks."""

    deadline = 0.25
    samples = tuple(
        {"title": str(number), "body": {"uuid": str(number), "image": sample.image}}
        for number, sample in enumerate(load_samples(models_folder()))
    )

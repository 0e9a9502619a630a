"""Ant or bee: a photo in the body, the insect out. Two variants of one network, chosen by INSECTS_VARIANT."""

import os
from pathlib import Path

from photos import LABELS, read_photo

import timebound as tb

HERE = Path(__file__).parent
FILES = {"onnx": "insects.onnx", "torch": "insects.pt"}


class Insects(tb.Model):
    """Send a photo (JPEG, PNG, WebP ...) of an ant or a bee as the body."""

    deadline = 5.0  # 50 photos at once, also where other programs keep the cores
    accepts = "image/*"
    samples = "samples"
    example = (HERE / "samples" / "bee.jpg").read_bytes()

    def load(self):
        variant = os.environ.get("INSECTS_VARIANT", "onnx")
        if variant not in FILES:
            raise ValueError(f"INSECTS_VARIANT is {variant!r}; use one of {', '.join(FILES)}")
        if not (HERE / FILES[variant]).is_file():
            raise ValueError(f"{FILES[variant]} is not shipped; python examples/insects/make_torch.py makes it")
        self.net = (tb.onnx if variant == "onnx" else tb.torch)(FILES[variant])

    def prepare(self, body):
        return read_photo(body)

    def finish(self, probabilities, body):
        shares = {label: round(float(share), 4) for label, share in zip(LABELS, probabilities, strict=True)}
        return {"label": max(shares, key=shares.__getitem__), "probabilities": shares}

    def fallback(self, body):
        return {"label": None, "probabilities": {}}  # no time to look at it

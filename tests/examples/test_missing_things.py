"""The examples' scripts without their data or a package: one sentence that names the cure, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
WITHOUT = """
import runpy, sys
package, script, *sys.argv[1:] = sys.argv[1:]
sys.argv[0] = script
sys.path.insert(0, script.rpartition("/")[0])
sys.modules[package] = None
runpy.run_path(script, run_name="__main__")
"""


def last_words(*command: str) -> str:
    """What a script that fails says, at the end of its usage."""
    done = subprocess.run(
        [sys.executable, *command], cwd=EXAMPLES, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("insects/evaluate.py --data WRONG", "WRONG/val/ants has no photos; README.md says"),
        ("handwriting/evaluate.py --data WRONG", "WRONG has no glyphs48.npz; README.md says"),
        ("handwriting/samples.py --data WRONG", "WRONG has no glyphs48.npz; README.md says"),
        ("handwriting/train.py --data WRONG --out OUT", "WRONG has no glyphs48.npz; README.md says"),
        ("handwriting/export.py --data . --weights OUT --models OUT --float", ".float.pt is not there; train.py --out"),
        ("handwriting/average.py --data . --out OUT MODELS", "MODELS has no mobile_wide.onnx; README.md says"),
        ("correction/evaluate.py --candidates WRONG", "WRONG is not there; candidates.py writes it"),
        ("correction/prepare.py --data WRONG --candidates insects/app.py --work W", "WRONG/words_mcbopomofo.tsv.gz is"),
        ("correction/train.py fit --work WRONG --out OUT", "WRONG has no real.npz; prepare.py --work WRONG writes it"),
        ("sentiment/evaluate.py --data WRONG", "WRONG/semeval2017_task4a.tsv.gz is not there; README.md says"),
        ("sentiment/report.py --users 0", "--users 0: the first picture needs one user at least"),
        ("sentiment/training/train.py WRONG --out OUT", "WRONG has no posts.npz; prepare.py --out WRONG writes it"),
        ("sentiment/training/export.py WRONG", "WRONG is not there; train.py writes it"),
    ],
)
def test_missing_data_is_named(tmp_path: Path, command: str, said: str) -> None:
    (tmp_path / "glyphs48.npz").touch()
    script, *arguments = command.split()
    paths = {".": str(tmp_path), "OUT": str(tmp_path / "OUT"), "MODELS": str(tmp_path / "MODELS")}
    words = last_words(script, *(paths.get(argument, argument) for argument in arguments))
    assert said in words.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("package", "command", "cure"),
    [
        ("torch", "insects/train.py --help", "pip install 'timebound[torch,convert]' scikit-learn"),
        ("torch", "correction/train.py --help", "pip install torch onnx"),
        ("torch", "handwriting/train.py --help", "pip install 'timebound[torch]'"),
        ("onnx", "handwriting/export.py --help", "pip install 'timebound[torch,convert]'"),
        ("torch", "handwriting/average.py --help", "pip install 'timebound[torch,convert]'"),
        ("torch", "sentiment/training/train.py --help", "pip install torch"),
        ("onnx", "sentiment/training/export.py --help", "pip install onnx"),
        ("safetensors", "sentiment/training/prepare.py --help", "pip install safetensors"),
    ],
)
def test_missing_package_is_named(package: str, command: str, cure: str) -> None:
    words = last_words("-c", WITHOUT, package, *command.split())
    assert words.startswith(package)
    assert f" is not installed: {cure}" in words


def test_photos_are_read_but_hidden_files_are_not(tmp_path: Path) -> None:
    ant = (EXAMPLES / "insects" / "samples" / "ant.jpg").read_bytes()
    for kind in ("ants", "bees"):
        (tmp_path / "val" / kind).mkdir(parents=True)
        (tmp_path / "val" / kind / "one.jpg").write_bytes(ant)
        (tmp_path / "val" / kind / ".DS_Store").touch()
    read = f"import sys; sys.path[0] = 'insects'; import pathlib, photos; folder = pathlib.Path({str(tmp_path)!r})"
    count = f"{read}; print(photos.read_folder(folder / 'val')[1].tolist())"
    done = subprocess.run(
        [sys.executable, "-c", count], cwd=EXAMPLES, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[0, 1]\n"
    (tmp_path / "val" / "bees" / "empty.jpg").touch()
    words = last_words("insects/evaluate.py", "--data", str(tmp_path))
    assert words.startswith(f"{tmp_path}/val/bees/empty.jpg is no photo: ")

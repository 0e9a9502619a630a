"""`timebound new NAME && timebound serve NAME`: the README of the new application is what happens."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from tests.live.serving import PATIENCE_S, Serving, clean_environment

pytestmark = pytest.mark.live


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("template", ["plain", "image", "onnx"])
def test_a_new_application_passes_its_test_and_answers_as_its_readme_says(tmp_path: Path, template: str) -> None:
    made = run(sys.executable, "-m", "timebound.cli", "new", "hello", "--template", template, folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1] == "next: timebound serve hello"
    tested = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "hello", folder=tmp_path)
    assert tested.returncode == 0, tested.stdout
    readme = (tmp_path / "hello" / "README.md").read_text()
    command, answer = re.findall(r"^\$ (curl .*)\n(.*)$", readme, re.M)[0]
    photo = Image.new("RGB", (64, 64), "green")
    photo.paste("white", (0, 48, 64, 64))
    buffer = io.BytesIO()
    photo.save(buffer, "PNG")
    (tmp_path / "photo.jpg").write_bytes(buffer.getvalue())
    with Serving(tmp_path / "hello") as serving:
        words = shlex.split(command.replace("http://127.0.0.1:8000", serving.url))
        assert json.loads(run(*words, folder=tmp_path).stdout) == json.loads(answer)


def test_a_second_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hello").mkdir()
    done = run(sys.executable, "-m", "timebound.cli", "new", "hello", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "timebound: hello exists already and is left as it is; choose another name\n"

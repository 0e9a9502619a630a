"""`timebound new NAME && timebound serve NAME`: the README of the new application is what happens."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.live.serving import PATIENCE_S, Serving, clean_environment

from timebound.scaffold.scaffold import TEMPLATES, write_application

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


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_new_application_passes_its_test_and_answers_as_its_readme_says(tmp_path: Path, template: str) -> None:
    made = run(sys.executable, "-m", "timebound.cli", "new", "hello", "--template", template, folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1] == "next: timebound serve hello"
    hello = tmp_path / "hello"
    readme = (hello / "README.md").read_text()
    assert "`pip install pytest && python -m pytest`" in readme
    tested = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder=hello)
    assert tested.returncode == 0, tested.stdout
    command, answer = re.findall(r"^\$ timebound serve \.\n\$ (curl .*)\n(.*)$", readme, re.M)[0]
    with Serving(hello) as serving:
        words = shlex.split(command.replace("http://127.0.0.1:8000", serving.url))
        assert json.loads(run(*words, folder=hello).stdout) == json.loads(answer)


@pytest.mark.parametrize("template", ["sklearn", "text"])
def test_the_program_that_trains_writes_a_file_that_answers_alike(tmp_path: Path, template: str) -> None:
    hello = tmp_path / "hello"
    write_application(hello, template)
    shipped = (hello / "model.onnx").read_bytes()
    (hello / "model.onnx").unlink()
    trained = run(sys.executable, "train.py", folder=hello)
    assert trained.returncode == 0, trained.stderr
    assert len((hello / "model.onnx").read_bytes()) == pytest.approx(len(shipped), rel=0.1)
    tested = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder=hello)
    assert tested.returncode == 0, tested.stdout


def test_the_onnx_application_refuses_a_pixel_that_is_no_pixel(tmp_path: Path) -> None:
    write_application(tmp_path / "hello", "onnx")
    with Serving(tmp_path / "hello") as serving:
        said = httpx.post(serving.url + "/predictions/hello", json={"pixels": [[1e40] * 8] * 8})
    assert (said.status_code, said.json()["field"]) == (422, "pixels")
    assert said.json()["detail"] == "pixels must be numbers from 0 to 16"


def test_applications_of_one_folder_are_tested_together(tmp_path: Path) -> None:
    for template in TEMPLATES:
        write_application(tmp_path / f"my-{template}", template)
    tested = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".", folder=tmp_path)
    assert tested.returncode == 0, tested.stdout


def test_a_second_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hello").mkdir()
    done = run(sys.executable, "-m", "timebound.cli", "new", "hello", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "timebound: hello exists already and is left as it is; choose another name\n"

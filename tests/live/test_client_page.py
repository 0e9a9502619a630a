"""What the page on the client shows is what happens: its programs are run, and what they print is compared."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.serving import Serving, clean_environment
from tests.redis_server import free_port

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
PROGRAMS = {text.partition("\n")[0].removeprefix("# "): text for kind, text in _FENCE.findall(PAGE) if kind == "python"}
MAKES_DOUBLER = PROGRAMS.pop("make_doubler.py")
SHOWN = [text for kind, text in _FENCE.findall(PAGE) if kind == "console"]


@pytest.fixture(scope="module")
def mood(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server of the README's class."""
    folder = tmp_path_factory.mktemp("mood")
    (app,) = re.findall(r"```python\n(# app\.py\n.*?)```", (ROOT / "README.md").read_text(), re.S)
    (folder / "app.py").write_text(app)
    with Serving(folder / "app.py", "--workers", "1", "--deadline", "20s") as serving:
        yield serving


@pytest.fixture(scope="module")
def doubler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("file")
    subprocess.run([sys.executable, "-c", MAKES_DOUBLER], cwd=folder, check=True)
    with Serving(folder / "doubler.onnx", "--workers", "1", "--grpc-port", "0") as serving:
        yield serving


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_is_shown(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    serving: Serving = request.getfixturevalue("doubler" if name in ("arrays.py", "tensors.py") else "mood")
    nobody = f"http://127.0.0.1:{free_port()}"
    program = PROGRAMS[name].replace("http://127.0.0.1:8000", serving.url).replace("http://127.0.0.1:8001", nobody)
    (tmp_path / name).write_text(program)
    command = [sys.executable, name]
    done = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False)
    assert f"$ .venv/bin/python {name}\n{done.stdout}" in SHOWN, done.stderr


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_tritonclient_asks_the_same_file_as_the_page_on_surfaces_says(doubler: Serving, kind: str) -> None:
    surfaces = (ROOT / "docs" / "surfaces.md").read_text()
    (program,) = [text for _, text in _FENCE.findall(surfaces) if f"tritonclient.{kind}" in text]
    where = str(doubler.wait_for_line("listening for gRPC")["at"]).removeprefix("grpc://")
    program = program.replace("127.0.0.1:8000", f"127.0.0.1:{doubler.port}").replace("127.0.0.1:8001", where)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[[2. 2. 2.]\n [2. 2. 2.]]\n"


def test_no_block_is_left_out() -> None:
    assert [kind for kind, _ in _FENCE.findall(PAGE)] == ["python", "console"] * (len(PROGRAMS) + 1)
    assert len(PROGRAMS) == len(SHOWN) - 1 == 8

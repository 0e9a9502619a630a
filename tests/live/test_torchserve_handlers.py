"""A handler that is made of TorchServe's own base class, which comes from TorchServe's package as it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from benchmarks.clients.roster import Client, prepared
from tests.live.serving import Serving
from tests.models import archives
from tests.outside import absent

pytestmark = pytest.mark.live

# Without what it needs: the handlers need torch, which is there, and nothing of the server's own.
PACKAGE = Client(lambda ports, folder: [], "", ("--no-deps", "torchserve==0.12.0"))


@pytest.fixture(scope="module")
def package() -> Path:
    """Where the package `ts` lies."""
    try:
        folder = prepared("torchserve", PACKAGE, may_install=True)
    except (subprocess.CalledProcessError, OSError) as error:
        absent(f"torchserve cannot be had from the package registry: {error}")
    assert folder is not None
    return next(folder.glob("lib/python*/site-packages"))


def test_a_network_with_its_weights_is_loaded_and_asked_by_the_base_handler(package: Path, tmp_path: Path) -> None:
    weights = tmp_path / "doubler.pt"
    torch.save({"factor": torch.full((3,), 2.0)}, weights)
    source = archives.HANDLERS / "doubler"
    archive = archives.pack(
        tmp_path, "doubler", "--version", "1.0", "--model-file", source / "model.py", "--serialized-file", weights,
        "--handler", source / "doubler_handler.py",
    )  # fmt: skip
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": path}
    with Serving(archive, "--workers", "1", "--deadline", "20", environment=environment) as serving:
        answer = serving.http.post("/predictions/doubler", json=[1.0, 2.5, -3.0])
        assert (answer.status_code, answer.json()) == (200, [2.0, 5.0, -6.0])
        wrong = serving.http.post("/predictions/doubler", json=[1.0, 2.5])
        assert (wrong.status_code, wrong.json()["message"]) == (503, "Prediction failed")

"""The insects example with the network it ships: photos as raw bodies, broken ones refused, its own batch table."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.live.serving import PATIENCE_S, Serving, clean_environment

pytestmark = pytest.mark.live

EXAMPLE = Path(__file__).parents[2] / "examples" / "insects"
ANT = (EXAMPLE / "samples" / "ant.jpg").read_bytes()


def test_a_photo_in_the_body_gets_its_insect() -> None:
    with Serving(EXAMPLE) as serving:
        (info,) = serving.http.get("/v1/models").json()["models"]
        assert (info["name"], info["backend"]) == ("insects", "onnx")
        answer = serving.http.post("/predictions/insects", content=ANT, headers={"content-type": "image/jpeg"}).json()
        assert answer["label"] == "ant"
        assert answer["probabilities"]["ant"] > 0.8
        assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=0.001)

        for kind in ("PNG", "WEBP"):
            buffer = io.BytesIO()
            Image.open(io.BytesIO(ANT)).save(buffer, kind, lossless=True)
            assert serving.http.post("/predictions/insects", content=buffer.getvalue()).json()["label"] == "ant"

        broken = serving.http.post("/predictions/insects", content=ANT[:2000])
        assert (broken.status_code, broken.json()["code"]) == (422, "bad_input")
        huge = io.BytesIO()
        Image.new("L", (5000, 5000)).save(huge, "PNG")
        refused = serving.http.post("/predictions/insects", content=huge.getvalue())
        assert (refused.status_code, "at most 16000000" in refused.json()["detail"]) == (422, True)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_the_variant_of_torch_takes_the_way_of_a_gpu(tmp_path: Path) -> None:
    app = shutil.copytree(EXAMPLE, tmp_path / "insects", ignore=shutil.ignore_patterns("*.pt"))
    torch.manual_seed(0)
    net = import_module("examples.insects.net").Insects()
    torch.jit.trace(net.eval(), torch.zeros(2, 224, 224, 3, dtype=torch.uint8)).save(app / "insects.pt")
    options = ("--device", "host", "--max-batch", "2", "--hands", "0")
    with Serving(app, *options, environment={"INSECTS_VARIANT": "torch"}) as serving:
        assert serving.http.get("/v1/models").json()["models"][0]["device"] == "host"
        assert "without being captured" not in serving.said
        headers = {"content-type": "image/jpeg", "Timebound-Timeout-Ms": "10000"}
        answer = serving.http.post("/predictions/insects", content=ANT, headers=headers).json()
        assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("jax", "INSECTS_VARIANT is 'jax'; use one of onnx, torch"),
        ("torch", "insects.pt is not shipped; python examples/insects/train.py --data DIR makes it"),
    ],
)
def test_another_variant_must_be_one_there_is(tmp_path: Path, variant: str, said: str) -> None:
    # A copy without insects.pt, which someone may have made here.
    app = shutil.copytree(EXAMPLE, tmp_path / "insects", ignore=shutil.ignore_patterns("*.pt"))
    done = subprocess.run(
        [sys.executable, "-m", "timebound.cli", "serve", str(app), "--port", "0"],
        env={**clean_environment(), "INSECTS_VARIANT": variant},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_the_table_of_batch_sizes_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "evaluate.py")], capture_output=True, text=True, timeout=120, check=True
    )
    table = [line.split() for line in done.stdout.splitlines()]
    assert ["batch", "1", "2", "4", "8", "16", "32"] in table
    times = next(row for row in table if row[:3] == ["ms", "per", "photo"])
    assert all(float(each) > 0 for each in times[3:])

"""The insects example with the network it ships: photos as raw bodies, broken ones refused, its own batch table."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest
from PIL import Image
from tests.live.serving import PATIENCE_S, Serving, clean_environment

import timebound as tb

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


def test_ant_and_bee_of_the_samples_are_told_apart() -> None:
    with Serving(EXAMPLE) as serving:
        for sample in ("ant", "bee"):
            picture = (EXAMPLE / "samples" / f"{sample}.jpg").read_bytes()
            answer = serving.http.post("/predictions/insects", content=picture).json()
            assert answer["label"] == sample
            assert answer["probabilities"][sample] > 0.8


def test_50_photos_at_once_are_all_answered_though_the_worker_gets_no_core_for_a_while() -> None:
    with Serving(EXAMPLE) as serving, ThreadPoolExecutor(50) as clients:
        worker, *_ = serving.workers()  # the understudy comes after
        os.kill(worker["pid"], signal.SIGSTOP)
        photo = partial(httpx.post, f"{serving.url}/predictions/insects", content=ANT, timeout=PATIENCE_S)
        asked = [clients.submit(photo) for _ in range(50)]
        time.sleep(1.5)  # what a busy machine may take for 50 photos beyond their own time
        os.kill(worker["pid"], signal.SIGCONT)
        answers = [each.result() for each in asked]
        assert [answer.status_code for answer in answers] == [200] * 50
        assert {answer.json()["label"] for answer in answers} <= {"ant", None}
        assert answers[0].json()["label"] == "ant"


def test_the_torch_file_is_made_of_the_shipped_one_by_one_command_and_answers_alike_on_the_way_of_a_gpu(
    tmp_path: Path,
) -> None:
    app = shutil.copytree(EXAMPLE, tmp_path / "insects", ignore=shutil.ignore_patterns("*.pt"))
    subprocess.run([sys.executable, str(app / "make_torch.py")], timeout=120, check=True)
    options = ("--device", "host", "--max-batch", "1", "--hands", "0")
    with Serving(app, *options, environment={"INSECTS_VARIANT": "torch"}) as serving:
        assert serving.http.get("/v1/models").json()["models"][0]["device"] == "host"
        assert "without being captured" not in serving.said
        for sample in ("ant", "bee"):
            picture = (app / "samples" / f"{sample}.jpg").read_bytes()
            headers = {"Timebound-Timeout-Ms": "20000"}
            answer = serving.http.post("/predictions/insects", content=picture, headers=headers).json()
            shipped = tb.testing.ask(EXAMPLE, picture)["probabilities"]
            assert answer["probabilities"]["bee"] == pytest.approx(shipped["bee"], abs=0.05)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("jax", "INSECTS_VARIANT is 'jax'; use one of onnx, torch"),
        ("torch", "insects.pt is not shipped; python examples/insects/make_torch.py makes it"),
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

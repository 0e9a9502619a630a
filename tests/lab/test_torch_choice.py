"""Which modes of torch tune would try: those that a class leaves open, that run here and answer alike."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from timebound.clock import MonotonicClock
from timebound.devices.base import adopt
from timebound.lab import agreement
from timebound.lab.agreement import compare
from timebound.lab.curve import chosen_model, engines_of
from timebound.lab.engines import Judgement, Means, ask, is_beaten, means, tell, why_not
from timebound.lab.tune import Settings, candidates_on_device
from timebound.lab.tuned import settings_text

APP = """
import numpy as np
import timebound as tb
import torch

class Times(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.by = torch.nn.Parameter(torch.tensor([1.0, 1.001, 0.5]))

    def forward(self, x):
        return x * self.by

class Best(tb.Model):
    example = {"x": [1.0, 2.0, 3.0]}
    max_batch = 4

    class Request(tb.Struct):
        x: list[float]

    def load(self):
        self.net = tb.torch(Times, device="cpu")

    def prepare(self, request):
        return np.array(request.x, np.float32)

    def finish(self, output, request):
        return {"y": output}
"""
CLOCK = MonotonicClock()
EVERYTHING = Means(True, True)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(agreement, "ENOUGH", 8)
    (tmp_path / "app.py").write_text(APP)
    yield tmp_path / "app.py"
    adopt(None)


@pytest.mark.parametrize("device", ["cpu", "host"])
def test_half_precision_that_answers_alike_agrees(app: Path, device: str) -> None:
    app.write_text(APP.replace('"cpu"', f'"{device}"'))
    found = compare(app, "", "bfloat16", tolerance=0.05, clock=CLOCK)
    assert (found.inputs, found.same) == (8, 8)
    assert found.difference > 0  # it was computed in another precision


def test_half_precision_that_answers_otherwise_does_not(app: Path) -> None:
    # 1.001 is 1 in bfloat16: what of two nearly equal numbers is the larger one is lost.
    app.write_text(APP.replace("2.0, 3.0", "1.0, 1.0").replace('{"y": output}', '{"best": int(output.argmax())}'))
    found = compare(app, "", "bfloat16", tolerance=0.05, clock=CLOCK)
    assert found.same < found.inputs


def test_a_class_says_what_it_leaves_open_and_keeps_the_rest(app: Path) -> None:
    def left(arguments: str) -> list[str]:
        app.write_text(APP.replace('device="cpu"', arguments))
        return engines_of(chosen_model(app, "", threads=1, engine=""))[1]

    assert left("compile=False") == ["own", "bfloat16"]
    assert left("") == ["own", "bfloat16", "compile", "bfloat16+compile"]
    assert left('dtype="float16", compile=False') == []
    assert left('device="host", compile=False') == ["own", "float16", "bfloat16"]
    net = chosen_model(app, "", threads=1, engine="bfloat16").net
    assert net is not None
    assert net.mode == "bfloat16"


def test_what_cannot_run_here_says_why() -> None:
    bare = Means(has_openvino=False, has_bf16=False, has_compiler=False)
    assert "no instructions for bf16" in why_not("bfloat16+channels-last", bare)
    assert "no C++ compiler" in why_not("bfloat16+compile", bare, "cuda:0")
    assert why_not("bfloat16", bare, "cuda:0") == why_not("channels-last", bare) == ""
    verdict = ask(Path("app.py"), "", "compile", Judgement(), bare)
    assert tell(verdict, {}, "own", Judgement()).startswith("compile was not tried: there is no C++ compiler")


def test_only_what_is_fastest_without_it_is_compiled() -> None:
    assert is_beaten("compile", {"own": 2.0, "bfloat16": 1.0})
    assert not is_beaten("bfloat16+compile", {"own": 2.0, "bfloat16": 1.0})
    assert not is_beaten("compile", {"own": 1.0, "bfloat16": 2.0})
    assert not is_beaten("openvino-f32", {"onnxruntime": 1.0})


def test_with_a_device_hands_are_tried_and_cores_are_not_divided() -> None:
    assert candidates_on_device(16, 1, 2) == [Settings(1, 2, 8, hands=8), Settings(1, 2, 8, hands=0)]
    assert [settings.hands for settings in candidates_on_device(2, 0, 2)] == [2, 0]


def test_a_mode_and_hands_are_flags_words_and_lines() -> None:
    settings = Settings(1, 2, 8, "bfloat16+compile", hands=0)
    assert settings.flags[-4:] == ["--hands", "0", "--torch", "bfloat16+compile"]
    assert str(settings) == "1 worker x 2 slots x no hands x 8 threads on bfloat16+compile"
    written = tomllib.loads(settings_text('engine = "openvino-f32"\ntorch = "own"\n', settings, "best"))
    assert written["torch"] == {"": "own", "best": "bfloat16+compile"}
    assert (written["engine"], written["hands"]) == ("openvino-f32", 0)


def test_without_a_compiler_nothing_is_compiled_and_with_one_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not means().has_compiler
    assert why_not("compile", EVERYTHING) == ""

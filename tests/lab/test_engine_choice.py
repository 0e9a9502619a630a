"""Which engines tune would try: those that can run, answer alike and are faster, each told of in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.onnx_files import FLOAT, save, save_doubler

from timebound.clock import MonotonicClock
from timebound.lab import agreement, engines
from timebound.lab.agreement import Agreement, compare, gap, is_same, leaves, volatile
from timebound.lab.curve import Point, chosen_model, engines_of
from timebound.lab.engines import Judgement, Means, Verdict, agrees, ask, best_batch, fastest, tell, why_not
from timebound.types import Timing

EVERYTHING, NOTHING = Means(True, True), Means(False, False)
INT8 = "onnxruntime-int8"
APP = """
import time, uuid
import numpy as np
import timebound as tb

class Sums(tb.Model):
    example = {"x": [1.0, 2.0, 3.0]}
    samples = [{"title": "other", "body": {"x": [9.0, 1.0, 0.0]}}]

    class Request(tb.Struct):
        x: list[float]

    def load(self):
        self.net = tb.onnx("twice.onnx", int8="eight.onnx")

    def prepare(self, request):
        return np.array(request.x, np.float32)

    def finish(self, output, request):
        fresh = {"id": uuid.uuid4().hex, "at": int(time.time())}
        return {"best": int(output.argmax()), "sum": float(output.sum()), **fresh}
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Doubles; what stands in for an int8 file doubles too, unless a test writes another one."""
    monkeypatch.setattr(agreement, "ENOUGH", 8)
    (tmp_path / "app.py").write_text(APP)
    save_doubler(tmp_path / "twice.onnx")
    save_doubler(tmp_path / "eight.onnx")
    return tmp_path / "app.py"


def alike(app: Path, engine: str = INT8) -> Agreement:
    return compare(app, "", engine, tolerance=0.05, clock=MonotonicClock())


def test_equal_answers_agree_though_ids_and_times_differ(app: Path) -> None:
    found = alike(app)
    assert (found.inputs, found.copies, found.same, found.difference) == (8, 6, 8, 0.0)
    assert found.scale == pytest.approx(18.0, abs=5)


def test_an_engine_that_answers_otherwise_does_not_agree(app: Path) -> None:
    spec = {"x": (FLOAT, ("n", 3))}
    save(app.parent / "eight.onnx", [("Neg", ["x"], ["y"])], spec, {"y": (FLOAT, ("n", 3))})
    found = alike(app)
    assert (found.same, found.inputs) == (0, 8)
    assert found.difference > 20  # 18 and -9


def test_openvino_is_asked_for_real(app: Path) -> None:
    pytest.importorskip("openvino", reason="the extra openvino is not installed")
    assert alike(app, "openvino-f32").share == 1.0


def test_an_engine_that_breaks_down_is_only_not_taken(app: Path) -> None:
    (app.parent / "eight.onnx").write_bytes(b"no graph")
    verdict = ask(app, "", INT8, Judgement(), EVERYTHING)
    assert "onnxruntime cannot load" in verdict.why_not
    assert not agrees(verdict, Judgement())


def test_samples_of_the_user_are_asked_too(app: Path, tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text('{"x": [5.0, 5.0, 6.0]}\n{"x": [7.0, 5.0, 6.0]}\n')
    more = tmp_path / "more.jsonl"
    found = compare(app, "", INT8, tolerance=0.05, more=more, clock=MonotonicClock())
    assert (found.inputs, found.copies) == (8, 4)


def test_a_model_says_which_engines_it_leaves_open(app: Path) -> None:
    own, others = engines_of(chosen_model(app, "", threads=1, engine=""))
    assert own == "onnxruntime"
    assert others == ["onnxruntime", INT8, "openvino-f32", "openvino-bf16"]
    app.write_text(APP.replace('int8="eight.onnx"', 'engine="onnxruntime"'))
    assert engines_of(chosen_model(app, "", threads=1, engine="")) == ("", [])


def test_fractions_may_differ_a_little_and_nothing_else_may() -> None:
    wanted = dict(leaves({"label": "a", "n": 3, "scores": [0.9, 0.05]}))

    def same(answer: object) -> bool:
        return is_same(wanted, dict(leaves(answer)), set(), 0.05)

    assert same({"label": "a", "n": 3, "scores": [0.88, 0.07]})
    assert not same({"label": "a", "n": 3, "scores": [0.80, 0.15]})
    assert not same({"label": "b", "n": 3, "scores": [0.9, 0.05]})
    assert not same({"label": "a", "n": 4, "scores": [0.9, 0.05]})
    assert not same({"label": "a", "n": 3, "scores": [0.9]})
    assert not same({"label": "a", "n": 3, "scores": [float("nan"), 0.05]})


def test_what_changes_by_itself_is_found() -> None:
    first, again = ([dict(leaves({"id": each, "n": 1}))] for each in "ab")
    assert volatile(first, again) == {"/id"}


def test_the_gap_is_looked_for_in_all_parts_of_an_output() -> None:
    assert gap({"a": [1.0, 2.0], "b": 3.0}, {"a": [1.0, 2.5], "b": 3.0}) == (0.5, 3.0)
    assert gap([1.0], [float("nan")])[0] == float("inf")


def test_what_cannot_run_here_says_why() -> None:
    assert why_not("openvino-bf16", EVERYTHING) == ""
    assert "pip install 'timebound[openvino]'" in why_not("openvino-f32", NOTHING)
    assert "no instructions for bf16" in why_not("openvino-bf16", Means(has_openvino=True, has_bf16=False))
    assert why_not("openvino-f32", Means(has_openvino=True, has_bf16=False)) == ""
    assert "was not tried: OpenVINO is not installed" in tell(
        ask(Path("app.py"), "", "openvino-f32", Judgement(), NOTHING), {}, "onnxruntime", Judgement()
    )


def test_the_fastest_engine_is_tried_and_noise_moves_nobody() -> None:
    assert (
        fastest({"onnxruntime": 0.010, "openvino-f32": 0.009, "openvino-bf16": 0.005}, "onnxruntime") == "openvino-bf16"
    )
    assert fastest({"onnxruntime": 0.010, "openvino-f32": 0.0098}, "onnxruntime") is None


def test_batches_that_the_server_would_not_run_do_not_count() -> None:
    points = [Point(1, 0.010, Timing(), 1.0), Point(64, 0.064, Timing(), 1.0)]
    assert best_batch(points, 1.0).per_item_s == pytest.approx(0.001)
    assert best_batch(points, 0.1).per_item_s == 0.010


@pytest.mark.parametrize(
    ("same", "cost", "words"),
    [
        (
            64,
            0.005,
            "64 of 64 inputs (100.0%) as onnxruntime does; largest difference 0.02 in outputs up to 0.9: it may",
        ),
        (
            30,
            0.001,
            "30 of 64 inputs (46.9%) as onnxruntime does; largest difference 0.02 in outputs up to 0.9: not taken",
        ),
        (64, 0.010, "but is not faster than the rest (10.00 ms per item, onnxruntime 10.00)"),
    ],
)
def test_a_verdict_is_told_with_its_figures(same: int, cost: float, words: str) -> None:
    verdict = Verdict("openvino-bf16", Agreement(64, 0, same, 0.02, 0.9))
    assert words in tell(verdict, {"onnxruntime": 0.010, "openvino-bf16": cost}, "onnxruntime", Judgement())


def test_the_means_of_this_machine_are_looked_up() -> None:
    assert isinstance(engines.means().has_bf16, bool)

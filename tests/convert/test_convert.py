"""Conversions: the numbers stay, what does not pass is not written, and mistakes are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.torch_files import Doubler, Pair, SumAndDifference, save_export, save_export_of_two, save_script
from torch import Tensor, nn

from timebound.backends.base import TensorSpec
from timebound.backends.onnx import onnx
from timebound.convert.compare import Measure, agreement, largest, measure, table
from timebound.convert.convert import Job, convert
from timebound.convert.samples import Samples, made_up, read_samples
from timebound.errors import SetupError

NET = """
import torch


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def wrong():
    return "a network"
"""


def run(source: str | Path, out: Path, **options: Any) -> str:
    return convert(Job(source=str(source), out=out, **options), lambda step: None)


def complaint(source: str | Path, out: Path, **options: Any) -> str:
    with pytest.raises(SetupError) as caught:
        run(source, out, **options)
    assert not out.exists()
    assert [file for file in out.parent.iterdir() if file.name.startswith(".")] == []
    return str(caught.value)


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}:make"


@pytest.fixture
def points(tmp_path: Path, net: str) -> Path:
    """Samples whose labels are what the network says."""
    x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    space: dict[str, Any] = {}
    exec(NET, space)
    made: Any = space["make"]()
    labels = made(torch.from_numpy(x)).argmax(1).numpy()
    np.savez(tmp_path / "points.npz", x=x, labels=labels)
    return tmp_path / "points.npz"


@pytest.mark.parametrize("kind", ["pt2", "pt", "function"])
def test_a_network_of_torch_becomes_onnx_with_the_same_numbers(tmp_path: Path, kind: str) -> None:
    (tmp_path / "made.py").write_text("from tests.models.torch_files import Doubler as make\n")
    sources: dict[str, Callable[[], str | Path]] = {
        "pt2": lambda: save_export(tmp_path / "net.pt2"),
        "pt": lambda: save_script(tmp_path / "net.pt"),
        "function": lambda: f"{tmp_path / 'made.py'}:make",
    }
    source = sources[kind]()
    out = tmp_path / "out.onnx"
    inputs = None if kind == "pt2" else ["x: float32[any, 3]"]
    shown = run(source, out, inputs=inputs)
    written = onnx(out)
    assert list(written.inputs) == [TensorSpec("x", "float32", (None, 3))]
    assert [spec.name for spec in written.outputs] == ["output"]
    for count in (1, 5):
        np.testing.assert_array_equal(written(np.ones((count, 3), np.float32)), np.full((count, 3), 2))
    assert [line.split("  ")[0] for line in shown.splitlines()[1:4]] == [
        "size", "ms per item, batch 1", "ms per item, batch 8"
    ]  # fmt: skip


def test_several_inputs_and_outputs_keep_their_names(tmp_path: Path) -> None:
    run(save_export_of_two(tmp_path / "both.pt2"), tmp_path / "both.onnx")
    answer = onnx(tmp_path / "both.onnx")({"a": np.ones((3, 3), np.float32), "b": np.zeros((3, 3), np.float32)})
    assert {name: value.tolist()[0] for name, value in answer.items()} == {"sum": [1] * 3, "difference": [1] * 3}


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from tests.models.torch_files import Doubler\n")
    filled = Doubler()
    nn.init.ones_(filled.offset)
    torch.save(filled.state_dict(), tmp_path / "w.pth")
    source = f"{tmp_path / 'net.py'}:Doubler"
    run(source, tmp_path / "out.onnx", weights=tmp_path / "w.pth", inputs=["x: float32[any, 3]"])
    assert onnx(tmp_path / "out.onnx")(np.zeros((1, 3), np.float32)).tolist() == [[1, 1, 1]]


def test_what_it_takes_is_read_off_samples(tmp_path: Path, net: str, points: Path) -> None:
    shown = run(net, tmp_path / "out.onnx", samples=points)
    assert "same answer on 64 samples" in shown
    assert shown.splitlines()[-1].split() == ["accuracy", "100.0%", "100.0%"]


@pytest.mark.parametrize(("form", "samples"), [("int8", True), ("int8", False), ("fp16", True)])
def test_a_smaller_file_takes_and_gives_the_same(
    tmp_path: Path, net: str, points: Path, form: str, samples: bool
) -> None:
    run(net, tmp_path / "full.onnx", samples=points)
    shown = run(tmp_path / "full.onnx", tmp_path / "small.onnx", form=form, samples=points if samples else None)
    full, small = onnx(tmp_path / "full.onnx"), onnx(tmp_path / "small.onnx")
    assert (small.inputs, [s.name for s in small.outputs]) == (full.inputs, [s.name for s in full.outputs])
    x = read_samples(points).arrays["x"]
    np.testing.assert_allclose(full(x), small(x), atol=0.1)
    assert not np.array_equal(full(x), small(x))  # it did change the numbers
    assert ("accuracy" in shown) == samples


def test_torch_goes_to_int8_in_one_step_calibrated_on_other_samples(tmp_path: Path, net: str, points: Path) -> None:
    folder = tmp_path / "items"
    folder.mkdir()
    for number, item in enumerate(read_samples(points).arrays["x"][:8]):
        np.save(folder / f"{number}.npy", item)
    out = tmp_path / "small.onnx"
    told: list[str] = []
    job = Job(source=net, out=out, samples=points, calibrate=folder, form="int8", agreement=0.8)
    convert(job, told.append)
    assert "calibrating on sample 8 of 8" in told
    assert out.is_file()


class Random(nn.Module):
    """Another answer each time."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


def test_an_export_beyond_the_tolerance_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from tests.convert.test_convert import Random as make\n")
    sentence = complaint(f"{tmp_path / 'net.py'}:make", tmp_path / "o.onnx", inputs=["x: float32[any, 3]"])
    assert "that is above --tolerance 0.001, so nothing was written" in sentence


def test_a_smaller_file_that_answers_otherwise_is_not_kept(tmp_path: Path, net: str, points: Path) -> None:
    run(net, tmp_path / "full.onnx", samples=points)
    np.savez(tmp_path / "far.npz", x=np.full((4, 3), 1e4, np.float32))  # scales that drown the real samples
    options: dict[str, Any] = {"samples": points, "calibrate": tmp_path / "far.npz", "form": "int8"}
    sentence = complaint(tmp_path / "full.onnx", tmp_path / "small.onnx", **options)
    assert "of the samples, below --agreement 0.9; nothing was written" in sentence


def test_an_older_file_survives_a_failure(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    out.write_text("older")
    with pytest.raises(SetupError, match=r"fails on the samples: forward\(\) is missing value for argument 'b'"):
        run(save_script(tmp_path / "both.pt", net=SumAndDifference()), out, inputs=["a: float32[any, 3]"])
    assert out.read_text() == "older"


def test_mistakes_are_named(tmp_path: Path, net: str) -> None:
    out, folder = tmp_path / "out.onnx", tmp_path
    script = save_script(folder / "net.pt")
    (folder / "net.txt").touch()
    (folder / "empty").mkdir()
    np.savez(folder / "two.npz", x=np.zeros((2, 3), np.float32), y=np.zeros((3, 3), np.float32))
    (folder / "bad.npz").write_text("no arrays")
    assert "does not say what it takes; add --input" in complaint(script, out)
    assert "does not exist" in complaint(folder / "gone.pt", out)
    assert "must end in .onnx" in complaint(script, folder / "out.pt3")
    assert "needs the name of a function" in complaint(net.removesuffix(":make"), out)
    assert "has no function 'gone'" in complaint(net.replace(":make", ":gone"), out)
    assert "must return a torch.nn.Module" in complaint(net.replace(":make", ":wrong"), out)
    assert "cannot convert " in complaint(folder / "net.txt", out)
    assert "is no input; write it as" in complaint(script, out, inputs=["x"])
    assert "samples not found" in complaint(script, out, samples=folder / "gone.npz")
    assert "it holds no .npy or .npz files" in complaint(script, out, samples=folder / "empty")
    assert "cannot be read as samples" in complaint(script, out, samples=folder / "bad.npz")
    assert "equally many items each" in complaint(script, out, samples=folder / "two.npz")
    assert "--weights fills a network that a function makes" in complaint(script, out, weights=folder / "w.pth")
    assert "cannot be exported to ONNX" in complaint(
        save_script(folder / "both.pt", net=SumAndDifference()),
        out,
        inputs=["a: float32[any, 3]", "b: float32[any, 3]"],
    )


def test_samples_never_run_code(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(SetupError, match="cannot be read as samples"):
        read_samples(tmp_path / "objects.npz")


def test_an_onnx_file_needs_a_form(tmp_path: Path) -> None:
    run(save_export(tmp_path / "net.pt2"), tmp_path / "net.onnx")
    with pytest.raises(SetupError, match="is ONNX already; say --int8 or --fp16"):
        run(tmp_path / "net.onnx", tmp_path / "again.onnx")


def test_differences_are_measured_over_all_outputs() -> None:
    samples = made_up([TensorSpec("x", "float32", (None, 3))])
    same = measure(lambda x: (x, x * 2), 100, samples)
    other = measure(lambda x: (x, x * 2 + 0.5), 50, samples)
    alike = agreement(same, other)
    assert [(round(each.difference, 5), each.same) for each in alike] == [(0.0, 1.0), (0.5, 1.0)]
    assert largest(alike) == alike[1]
    assert "largest difference" in table(same, other, len(samples))
    assert agreement(same, measure(lambda x: (x, x[:, :2]), 1, samples))[1].difference == float("inf")
    assert agreement(same, measure(lambda x: (x, x * np.nan), 1, samples))[1].difference == float("inf")


def test_accuracy_is_the_share_of_right_answers() -> None:
    samples = Samples({"x": np.eye(4, dtype=np.float32)}, np.array([0, 1, 2, 0]))
    assert measure(lambda x: x, 1, samples).accuracy == 0.75
    assert measure(lambda x: x[:, 0], 1, samples).accuracy is None
    assert isinstance(measure(lambda x: x, 1, samples), Measure)


def test_a_pair_of_outputs_is_numbered(tmp_path: Path) -> None:
    run(save_export(tmp_path / "pair.pt2", net=Pair()), tmp_path / "pair.onnx")
    assert [spec.name for spec in onnx(tmp_path / "pair.onnx").outputs] == ["output_0", "output_1"]

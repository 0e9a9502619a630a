"""What `timebound convert` refuses: files that answer otherwise, labels and samples that fit nothing, paths."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.convert.test_convert import complaint, run
from tests.models.torch_files import save_export, save_script
from torch import Tensor, nn

from timebound.backends.onnx import OnnxBackend
from timebound.convert.compare import Measure, agreement
from timebound.errors import SetupError

FOUR = ["x: float32[any, 4]"]


class Line(nn.Module):
    """A regression that half precision suits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x)


class Steep(Line):
    """A regression whose numbers are too large for half precision."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1e6


class Scored(nn.Module):
    """Two classes that hold, and a regression that half precision ruins."""

    def __init__(self) -> None:
        super().__init__()
        self.steep = Steep()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([x[:, 0], x[:, 0] + 1], 1), self.steep(x)


class Small(nn.Module):
    """Another answer each time, all of them small."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.rand_like(x).repeat(1, 750).softmax(-1)


class Lifted(nn.Module):
    """Other answers each time, all of them alike beside 1000."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.rand_like(x) * 0.5 + 1000


class Wide(nn.Module):
    """Classes by the thousand that are hardly apart: untrained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3000), nn.Softmax(-1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Undefined(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 2).sqrt()


class Eigen(nn.Module):
    """What ONNX has no word for."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvals(x[:, :, None] * x[:, None, :]).abs()


class Named(Line):
    """Outputs called as the exporter calls values inside, or as the input."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"score": self.line(x), self.name: x.mean(1) + 1}


FACTORIES = """
def inner():
    return Named("mean")

def given():
    return Named("x")

def fine():
    return Named("average")

def asks(size):
    return None

def raises():
    raise OSError("no such corpus")
"""


@pytest.fixture
def made(tmp_path: Path) -> str:
    """A file of functions that make the networks above: add the name of one."""
    (tmp_path / "made.py").write_text(f"from tests.convert.test_refusals import *\n{FACTORIES}")
    return f"{tmp_path / 'made.py'}:"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return save(tmp_path / "rows.npz", x=random_rows())


def random_rows(width: int = 4) -> Any:
    return np.random.default_rng(0).random((32, width), dtype=np.float32)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("name", ["Steep", "Scored"])
def test_a_regression_that_strays_is_not_kept(tmp_path: Path, made: str, rows: Path, name: str) -> None:
    sentence = complaint(f"{made}{name}", tmp_path / "o.onnx", samples=rows, form="fp16")
    assert "the fp16 file differs by" in sentence
    assert "(largest output" in sentence
    assert "above 0.1, which is 1 less --agreement 0.9" in sentence


def test_a_regression_that_holds_is_kept(tmp_path: Path, made: str, rows: Path) -> None:
    run(f"{made}Line", tmp_path / "half.onnx", samples=rows, form="fp16", agreement=0.99)
    run(f"{made}Line", tmp_path / "eight.onnx", samples=rows, form="int8")


def test_small_outputs_have_to_be_the_same_too(tmp_path: Path, made: str) -> None:
    assert "above --tolerance 0.001" in complaint(f"{made}Small", tmp_path / "o.onnx", inputs=FOUR)


def test_an_export_has_to_choose_the_same(tmp_path: Path, made: str) -> None:
    sentence = complaint(f"{made}Lifted", tmp_path / "o.onnx", inputs=FOUR)
    assert "the ONNX file gives the same answer as" in sentence
    assert "below --agreement 0.9; nothing was written" in sentence


def test_an_untrained_network_of_many_classes_passes(tmp_path: Path, made: str) -> None:
    run(f"{made}Wide", tmp_path / "o.onnx", inputs=FOUR)


def measured(*outputs: Any) -> Measure:
    return Measure(1, 1.0, 1.0, [np.array(output) for output in outputs], None)


def test_ties_count_as_equal_whichever_way_they_go() -> None:
    before = measured([[1.0, 1.0 - 1e-6, 0.0], [0.0, 0.5, 1.0]])
    (alike,) = agreement(before, measured([[1.0 - 1e-6, 1.0, 0.0], [0.0, 1.0, 0.5]]))
    assert (alike.same, alike.near) == (0.0, 0.5)


def test_numbers_and_names_of_classes_are_compared_as_answers() -> None:
    for before, after in (([0, 9, 2, 3], [0, 1, 2, 3]), (["a", "b", "c", "d"], ["a", "a", "c", "d"])):
        (alike,) = agreement(measured(before), measured(after))
        assert (alike.same, alike.near) == (0.75, 0.75)


def test_outputs_are_judged_by_their_own_size() -> None:
    nothing, same, endless = agreement(
        measured([[0.0]], [[0.0]], [[-np.inf], [2.0]]), measured([[1e-9]], [[0.0]], [[-np.inf], [1.0]])
    )
    assert (nothing.relative, same.relative, endless.relative) == (float("inf"), 0.0, 0.5)


def test_the_source_is_not_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    run(save_export(tmp_path / "net.pt2"), source)
    before = source.read_bytes()
    (tmp_path / "link.onnx").symlink_to(source)
    for out in (source, tmp_path / "link.onnx"):
        with pytest.raises(SetupError, match="is the file to be converted itself"):
            run(source, out, form="int8")
    assert source.read_bytes() == before


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    source, out = save_export(tmp_path / "net.pt2"), tmp_path / "o.onnx"
    (tmp_path / "d.onnx").mkdir()
    assert "gone.onnx does not exist" in complaint(tmp_path / "gone.onnx", out)
    with pytest.raises(SetupError, match=r"d\.onnx is a folder"):
        run(source, tmp_path / "d.onnx")
    with pytest.raises(SetupError, match="nothing can be written into /proc"):
        run(source, Path("/proc/o.onnx"))


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["ant"] * 32, "labels such as ant"),
        ([0] * 31 + [99], "the label 99"),
        ([1] * 31 + [-1], "the label -1"),
        ([0.5] * 32, "the label 0.5"),
        (np.eye(3)[[0] * 32], r"labels of shape \(32, 3\)"),
        ([[1]] * 32, r"labels of shape \(32, 1\)"),
    ],
)
def test_labels_that_name_no_class(tmp_path: Path, labels: Any, found: str) -> None:
    samples = save(tmp_path / "s.npz", x=random_rows(3), labels=np.array(labels))
    with pytest.raises(SetupError, match=f"{found}.*one whole number from 0 to 2 per item.* 3 classes"):
        run(save_export(tmp_path / "net.pt2"), tmp_path / "o.onnx", samples=samples)


def test_labels_may_be_whole_floats(tmp_path: Path) -> None:
    samples = save(tmp_path / "s.npz", x=random_rows(3), labels=random_rows(3).argmax(1).astype(np.float32))
    shown = run(save_export(tmp_path / "net.pt2"), tmp_path / "o.onnx", samples=samples)
    assert shown.splitlines()[-1].split() == ["accuracy", "100.0%", "100.0%"]


def test_a_function_that_fails_is_named(tmp_path: Path, made: str) -> None:
    out = tmp_path / "o.onnx"
    assert "made.py:raises failed: OSError: no such corpus" in complaint(f"{made}raises", out, inputs=FOUR)
    sentence = complaint(f"{made}asks", out, inputs=FOUR)
    assert "made.py:asks failed: TypeError: asks() missing 1 required positional argument" in sentence
    assert "it is called without arguments" in sentence


@pytest.mark.parametrize("size", ["-1", "0"])
def test_sizes_below_one_are_refused(tmp_path: Path, made: str, size: str) -> None:
    sentence = complaint(f"{made}Line", tmp_path / "o.onnx", inputs=[f"x: float32[any, {size}]"])
    assert 'has a size below 1; write "any"' in sentence


@pytest.mark.parametrize("junk", [b"hello world this is text\n", b"junk", b"", b"PK\x03\x04junk"])
def test_junk_is_no_weights_and_no_samples(tmp_path: Path, made: str, junk: bytes) -> None:
    out, file = tmp_path / "o.onnx", tmp_path / "junk.npz"
    file.write_bytes(junk)
    assert "junk.npz is no file of weights" in complaint(f"{made}Line", out, inputs=FOUR, weights=file)
    sentence = complaint(f"{made}Line", out, samples=file)
    assert "junk.npz is damaged, no .npy or .npz file, or holds Python objects" in sentence
    assert "allow_pickle" not in sentence


def test_other_archives_and_mixed_folders_are_no_samples(tmp_path: Path, made: str) -> None:
    out, folder = tmp_path / "o.onnx", tmp_path / "items"
    with zipfile.ZipFile(tmp_path / "texts.npz", "w") as archive:
        archive.writestr("x", "text")
    assert "holds other things than arrays" in complaint(f"{made}Line", out, samples=tmp_path / "texts.npz")
    folder.mkdir()
    np.save(folder / "a.npy", np.zeros(4, np.float32))
    np.save(folder / "b.npy", np.zeros(5, np.float32))
    assert "b.npy holds {'input': (5,)}, but a.npy" in complaint(f"{made}Line", out, samples=folder)


def test_samples_that_do_not_fit_are_named(tmp_path: Path, made: str, rows: Path) -> None:
    out = tmp_path / "o.onnx"
    given = {"inputs": FOUR, "form": "int8"}
    wrong = save(tmp_path / "wrong.npz", y=random_rows(3))
    expected = "wrong.npz holds y: float32[any, 3], but the network takes x: float32[any, 4]"
    assert expected in complaint(f"{made}Line", out, samples=wrong, **given)
    assert expected in complaint(f"{made}Line", out, samples=rows, calibrate=wrong, **given)
    double = save(tmp_path / "double.npz", x=random_rows().astype(np.float64))
    assert "double.npz holds x: float64[any, 4]" in complaint(f"{made}Line", out, samples=double, **given)
    two = save(tmp_path / "two.npz", y=random_rows(), z=random_rows())
    assert "two.npz holds y, z, but the network takes x" in complaint(f"{made}Line", out, samples=two, **given)


def test_an_original_that_gives_no_numbers_is_named(tmp_path: Path, made: str, rows: Path) -> None:
    out = tmp_path / "o.onnx"
    assert "itself gives NaN on the samples" in complaint(f"{made}Undefined", out, samples=rows)
    assert "made-up samples" in complaint(f"{made}Undefined", out, inputs=FOUR)


def test_the_reason_is_kept_of_what_torch_says(tmp_path: Path, made: str) -> None:
    out = tmp_path / "o.onnx"
    script = save_script(tmp_path / "net.pt", net=Line())
    sentence = complaint(script, out, inputs=["x: float32[any, 3]"])
    assert "fails on the samples: RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x3 and 4x1);" in sentence
    sentence = complaint(f"{made}Eigen", out, inputs=FOUR)
    assert "DispatchError: No ONNX function found for <OpOverload(op='aten.linalg_eig'" in sentence
    assert "\x1b" not in sentence


def test_an_output_with_a_name_that_is_taken_is_named(tmp_path: Path, made: str) -> None:
    out = tmp_path / "o.onnx"
    for factory, name in (("inner", "mean"), ("given", "x")):
        sentence = complaint(f"{made}{factory}", out, inputs=FOUR)
        assert f"its output {name} has the name of an input or of a value inside; call it something else" in sentence
    run(f"{made}fine", out, inputs=FOUR)
    assert [spec.name for spec in OnnxBackend(out).outputs] == ["score", "average"]


def test_a_result_that_does_not_run_is_named(tmp_path: Path, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel for Gemm")

    monkeypatch.setattr("timebound.convert.convert.onnx", lambda path, threads: broken)
    sentence = complaint(f"{made}Line", tmp_path / "o.onnx", inputs=FOUR)
    assert "the converted file does not run: no kernel for Gemm; nothing was written" in sentence

"""The torch backend: files and made networks, what goes in and out, and sentences for what does not fit."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch as library
from tests.models.onnx_files import save_doubler
from tests.models.torch_files import (
    Doubler,
    Pair,
    SumAndDifference,
    Trap,
    save_export,
    save_export_of_two,
    save_script,
    torch_pickle,
    with_entries,
)

from timebound.backends.base import Backend, Place, TensorSpec, opened_in
from timebound.backends.ensemble import ensemble
from timebound.backends.file_model import file_model
from timebound.backends.onnx import onnx
from timebound.backends.torch import TorchBackend, torch, torch_file
from timebound.clock import ManualClock
from timebound.errors import SetupError
from timebound.workers.runner import Runner
from timebound.workers.warmup import warm_up


def rows(count: int, width: int = 3) -> Any:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def complaint(open_it: Callable[[], Any]) -> str:
    with pytest.raises(SetupError) as caught:
        open_it()
    return str(caught.value)


@pytest.fixture(params=["pt2", "pt", "module", "function"])
def doubler(request: pytest.FixtureRequest, tmp_path: Path) -> TorchBackend:
    """The same network, come by in every way."""
    ways: dict[str, Callable[[], TorchBackend]] = {
        "pt2": lambda: torch(save_export(tmp_path / "twice.pt2")),
        "pt": lambda: torch(save_script(tmp_path / "twice.pt"), inputs="x: float32[any, 3]"),
        "module": lambda: torch(Doubler(), inputs="x: float32[any, 3]"),
        "function": lambda: torch(Doubler, inputs="x: float32[any, 3]"),
    }
    return ways[request.param]()


def test_every_way_gives_a_backend_that_runs_batches_of_any_size(doubler: TorchBackend) -> None:
    anything: object = doubler
    assert isinstance(anything, Backend)
    assert (doubler.kind, doubler.parallel) == ("torch", True)
    assert list(doubler.inputs) == [TensorSpec("x", "float32", (None, 3))]
    for count in (1, 2, 64):
        answer = doubler(rows(count))
        assert isinstance(answer, np.ndarray)
        np.testing.assert_array_equal(answer, rows(count) * 2)


def test_another_dtype_or_shape_is_named_with_its_cure(doubler: TorchBackend) -> None:
    with pytest.raises(ValueError, match=r"but prepare\(\) gave float64: return \.astype\(np\.float32\)"):
        doubler(rows(2).astype(np.float64))
    with pytest.raises(ValueError, match=r"has shape \(2, 4\): give items of shape \(3,\)"):
        doubler(rows(2, 4))
    with pytest.raises(ValueError, match="but got a list: its items have different shapes"):
        doubler([rows(1)[0], rows(1, 4)[0]])


def test_arrays_that_torch_would_not_take_are_taken(doubler: TorchBackend) -> None:
    backwards = rows(4)[::-1]
    frozen = rows(4)
    frozen.flags.writeable = False
    np.testing.assert_array_equal(doubler(backwards), backwards * 2)
    np.testing.assert_array_equal(doubler(frozen), frozen * 2)


def test_several_threads_at_once_get_their_own_answers(doubler: TorchBackend) -> None:
    batches = [rows(8) + number for number in range(64)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(doubler, batches))
    for batch, answer in zip(batches, answers, strict=True):
        np.testing.assert_array_equal(answer, batch * 2)


@pytest.mark.parametrize("kind", ["pt2", "pt", "module"])
def test_several_inputs_and_outputs_go_by_name(tmp_path: Path, kind: str) -> None:
    ways: dict[str, Callable[[], TorchBackend]] = {
        "pt2": lambda: torch(save_export_of_two(tmp_path / "both.pt2")),
        "pt": lambda: torch(save_script(tmp_path / "both.pt", net=SumAndDifference())),
        "module": lambda: torch(SumAndDifference()),
    }
    answer = ways[kind]()({"b": rows(2), "a": rows(2) + 1})
    np.testing.assert_array_equal(answer["sum"], rows(2) * 2 + 1)
    np.testing.assert_array_equal(answer["difference"], np.ones((2, 3)))


def test_a_network_without_a_signature_says_what_it_failed_on() -> None:
    with pytest.raises(ValueError, match=r"^Doubler failed on a batch of float32\[2, 4\]: The size of tensor"):
        torch(Doubler)(rows(2, 4))
    with pytest.raises(ValueError, match="takes arrays of numbers, but got texts"):
        torch(Doubler)(np.array(["a"]))


def test_a_tuple_comes_back_as_one() -> None:
    up, down = torch(Pair())(rows(2))
    np.testing.assert_array_equal(up - down, np.full((2, 3), 2))


def test_half_precision_brain_floats_come_back_as_floats() -> None:
    answer = torch(library.nn.Identity().bfloat16())(rows(2))
    assert answer.dtype == np.float32
    made = torch(_Brain)(rows(2))
    assert (made.dtype, made.tolist()) == (np.float32, rows(2).tolist())


class _Brain(library.nn.Module):
    def forward(self, x: library.Tensor) -> library.Tensor:
        return x.to(library.bfloat16)


def test_channels_last_gives_the_same_numbers() -> None:
    library.manual_seed(0)
    net = library.nn.Conv2d(3, 4, 3)
    pictures = np.random.default_rng(0).random((2, 3, 8, 8), dtype=np.float32)
    np.testing.assert_allclose(torch(net)(pictures), torch(net, channels_last=True)(pictures), atol=1e-5)


def test_training_and_gradients_are_off() -> None:
    seen = []

    class Watch(library.nn.Module):
        def forward(self, x: library.Tensor) -> library.Tensor:
            seen.append((self.training, library.is_grad_enabled(), library.is_inference_mode_enabled()))
            return x

    torch(Watch().train())(rows(1))
    assert seen == [(False, False, True)]


def test_a_network_uses_the_threads_of_its_place(tmp_path: Path) -> None:
    with opened_in(Place(tmp_path, threads=2)):
        torch(Doubler)
        assert library.get_num_threads() == 2
        torch(Doubler, threads=1)
    assert library.get_num_threads() == 1


def test_members_of_torch_and_onnx_make_an_ensemble(tmp_path: Path) -> None:
    net = ensemble(torch(save_export(tmp_path / "t.pt2")), onnx(save_doubler(tmp_path / "o.onnx")), combine="mean")
    assert net.parallel
    assert net.warm_sizes(8) == [1, 2, 4, 8]
    np.testing.assert_array_equal(net(rows(4)), rows(4) * 2)


def test_weights_are_loaded_from_a_state_dict(tmp_path: Path) -> None:
    net = Doubler()
    library.nn.init.ones_(net.offset)
    library.save(net.state_dict(), tmp_path / "weights.pth")
    with opened_in(Place(tmp_path)):
        np.testing.assert_array_equal(torch(Doubler, weights="weights.pth")(rows(1)), rows(1) * 2 + 1)
        assert "do not fit the network" in complaint(lambda: torch(Pair, weights="weights.pth"))
        assert "weights file not found" in complaint(lambda: torch(Pair, weights="gone.pth"))
        assert "a file brings its weights" in complaint(lambda: torch("weights.pth", weights="weights.pth"))


@pytest.mark.parametrize("content", ["module", "weights", "old weights", "text"])
def test_a_pickle_is_refused_without_being_read(tmp_path: Path, content: str) -> None:
    file, mark = tmp_path / "net.pt", tmp_path / "mark"
    net = Doubler()
    net.trap = Trap(mark)
    contents = {"module": net, "weights": {"w": Trap(mark)}, "old weights": {"w": Trap(mark)}, "text": "hello"}
    library.save(contents[content], file, _use_new_zipfile_serialization=content != "old weights")
    sentence = complaint(lambda: torch(file))
    assert "a Python pickle, which can run any code when read" in sentence
    assert "tb.torch(make_network, weights=...)" in sentence
    assert "Python objects" in complaint(lambda: torch(Doubler, weights=file)) or content == "text"
    assert not mark.exists()


def test_weights_that_hold_objects_are_refused_without_being_read(tmp_path: Path) -> None:
    file, mark = tmp_path / "weights.pth", tmp_path / "mark"
    file.write_bytes(torch_pickle({"offset": Trap(mark)}))
    assert "save only the weights" in complaint(lambda: torch(Doubler, weights=file))
    assert not mark.exists()


def test_a_pickle_among_the_examples_of_an_exported_file_is_not_read(tmp_path: Path) -> None:
    file, mark = save_export(tmp_path / "net.pt2"), tmp_path / "mark"
    with_entries(file, {"data/sample_inputs/model.pt": torch_pickle(((Trap(mark),), {}))})
    assert "holds Python objects, which can run code when read" in complaint(lambda: torch(file))
    assert not mark.exists()


@pytest.mark.parametrize("name", ["opaque_obj_0", "tensor_0"])
def test_a_pickle_among_the_constants_of_an_exported_file_is_not_read(tmp_path: Path, name: str) -> None:
    file, mark = save_export(tmp_path / "net.pt2"), tmp_path / "mark"
    data = pickle.dumps(Trap(mark)) if name.startswith("opaque") else torch_pickle(Trap(mark))
    entry = {"path_name": name, "is_param": False, "use_pickle": True, "tensor_meta": None}
    config = json.dumps({"config": {"c": entry}}).encode()
    with_entries(file, {f"data/constants/{name}": data, "data/constants/model_constants_config.json": config})
    assert "holds Python objects, which can run code when read" in complaint(lambda: torch(file))
    assert not mark.exists()
    assert pickle.loads(pickle.dumps([1])) == [1]  # and everybody else may use pickles again


def test_compiled_machine_code_is_refused(tmp_path: Path) -> None:
    file = with_entries(save_export(tmp_path / "net.pt2"), {"data/aotinductor/model/net.so": b"code"})
    assert "holds compiled machine code (AOTInductor)" in complaint(lambda: torch(file))


def test_a_fixed_batch_is_named_with_its_cure(tmp_path: Path) -> None:
    sentence = complaint(lambda: torch(save_export(tmp_path / "two.pt2", batch=None)))
    assert sentence.startswith("two.pt2 was exported with a fixed batch (x: float32[2, 3]); export it again with")
    assert "torch.export.Dim('batch')" in sentence


def test_the_limits_of_an_exported_batch_are_known(tmp_path: Path) -> None:
    net = torch(save_export(tmp_path / "few.pt2", batch=library.export.Dim("batch", max=8)))
    assert net.max_batch == 8
    assert net.warm_sizes(64) == [1, 2, 4, 8]
    assert file_model(net, name="few").max_batch == 8
    many = library.export.Dim("batch", min=2)
    assert "at least 2" in complaint(lambda: torch(save_export(tmp_path / "many.pt2", batch=many)))


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with opened_in(Place(tmp_path)):
        assert complaint(lambda: torch("gone.pt")) == (
            f"model file not found: {tmp_path / 'gone.pt'}; check the name, it is relative to {tmp_path}"
        )
        file = save_script(tmp_path / "broken.pt")
        with_entries(file, {"code/__torch__/tests/models/torch_files.py": b"no code"})
        assert complaint(lambda: torch("broken.pt")).startswith(f"torch cannot load {file}: ")


@pytest.mark.parametrize(
    ("device", "sentence"),
    [("gpu", 'use "cpu", "cuda"'), ("mps", "is not supported"), ("cuda:99", "CUDA device")],
)
def test_a_device_that_is_not_there_is_named(device: str, sentence: str) -> None:
    assert sentence in complaint(lambda: torch(Doubler, device=device))


def test_what_is_no_network_is_named() -> None:
    assert "not a int" in complaint(lambda: torch(3))
    assert complaint(lambda: torch(dict)) == "dict() gave a dict; it must return a torch.nn.Module"


def test_without_torch_the_extra_is_named() -> None:
    code = "import sys; sys.modules['torch'] = None; import timebound as tb; tb.torch('net.pt')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1].endswith(
        "torch is not installed; install it with: pip install 'timebound[torch]'"
    )


@pytest.mark.parametrize("text", ["x float32[3]", "x: float33[any, 3]", "x: float32[any, three]", "x: float32[8, 3]"])
def test_an_input_written_wrongly_is_named(text: str) -> None:
    assert 'x: float32[any, 3, 224, 224]"' in complaint(lambda: torch(Doubler, inputs=text))


def answer(file: Path, body: Any) -> Any:
    """What a file served as it is says to a body."""
    runner = Runner(file_model(torch_file(file), name="tiny"), ManualClock())
    info = warm_up(runner, ManualClock())
    assert (info.backend, info.is_parallel) == ("torch", True)
    report = runner.run([msgspec.json.encode(body)])
    assert report is not None
    (outcome,) = report.outcomes
    assert outcome.code == "", outcome.body
    return msgspec.json.decode(outcome.body)


def test_an_exported_file_is_served_by_its_signature(tmp_path: Path) -> None:
    assert answer(save_export(tmp_path / "m.pt2"), {"x": [1, 2, 3]}) == {"output": [2, 4, 6]}
    both = {"a": [1, 1, 1], "b": [1, 2, 3]}
    expected = {"sum": [2, 3, 4], "difference": [0, -1, -2]}
    assert answer(save_export_of_two(tmp_path / "n.pt2"), both) == expected
    pair = save_export(tmp_path / "p.pt2", net=Pair())
    assert answer(pair, {"x": [1, 2, 3]}) == {"output_0": [2, 3, 4], "output_1": [0, 1, 2]}


def test_a_script_that_says_what_it_takes_is_served(tmp_path: Path) -> None:
    file = save_script(tmp_path / "m.pt", inputs="x: float32[any, 3]\n")
    assert answer(file, {"x": [1, 2, 3]}) == {"output": [2, 4, 6]}
    pair = save_script(tmp_path / "p.pt", net=Pair(), inputs="x: float32[any, 3]\n")
    assert answer(pair, {"x": [1, 2, 3]}) == {"output_0": [2, 3, 4], "output_1": [0, 1, 2]}


def test_a_script_that_does_not_is_told_what_is_needed(tmp_path: Path) -> None:
    sentence = complaint(lambda: torch_file(save_script(tmp_path / "m.pt")))
    assert "does not say the shape of its inputs" in sentence
    assert 'tb.torch("m.pt")' in sentence
    assert "timebound convert" in sentence


def test_each_size_is_met_before_serving_up_to_one_that_outlasts_the_deadline() -> None:
    clock = ManualClock()
    sizes: list[int] = []

    class Slow(library.nn.Module):
        def forward(self, x: library.Tensor) -> library.Tensor:
            sizes.append(len(x))
            clock.advance(0.1 * len(x))
            return x

    model = file_model(torch(Slow(), inputs="x: float32[any, 3]"), name="slow")
    warm_up(Runner(model, clock), clock)
    assert sizes[-6:] == [1, 2, 4, 8, 16, 16]  # 1.6 s, again: over the deadline of a second


class Halver(library.nn.Module):
    """Writes into its input."""

    def forward(self, x: Any) -> Any:
        return x.div_(2) * 1.0


def test_a_network_cannot_change_what_others_are_given() -> None:
    batch = np.full((1, 1), 8, np.float32)
    members = [torch(Halver(), inputs="x: float32[any, 1]") for _ in range(3)]
    assert ensemble(*members, combine="mean")(batch).tolist() == [[4.0]]
    assert batch.tolist() == [[8.0]]


def test_the_server_may_say_how_to_compute_where_the_class_does_not(tmp_path: Path) -> None:
    with opened_in(Place(tmp_path, mode="bfloat16+channels-last")):
        left, said = torch(library.nn.Linear(3, 2)), torch(library.nn.Linear(3, 2), dtype="float32")
    assert (left._dtype, said._dtype) == (library.bfloat16, library.float32)
    assert left(np.ones((2, 3), np.float32)).dtype == np.float32
    with opened_in(Place(tmp_path, mode="own")):
        assert torch(library.nn.Linear(3, 2))._dtype is None


def test_nothing_is_compiled_on_a_processor_but_what_is_run_before_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []

    def compiled(call: Any) -> Any:
        def run(x: Any) -> Any:
            batches.append(len(x))
            return call(x)

        return run

    monkeypatch.setattr("timebound.backends.torch.compiled", compiled)
    net = torch(library.nn.Linear(3, 2), compile=True)
    net(np.ones((1, 3), np.float32))
    with ensemble(net, net).warming():
        net(np.ones((2, 3), np.float32))
    for count in (1, 2, 3):
        net(np.ones((count, 3), np.float32))
    assert batches == [2, 2]

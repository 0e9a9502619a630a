"""What the doctor says of GPUs, and of models that run on one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from timebound.config import Config
from timebound.doctor.finding import State
from timebound.doctor.gpus import captured, cards, check_gpus, library
from timebound.machine.nvml import Cards
from timebound.types import ModelInfo

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Fri Jan 24 2025\n"


def with_gpus(root: Path, count: int) -> Path:
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(DRIVER)
    (root / "dev").mkdir()
    for number in range(count):
        (root / f"dev/nvidia{number}").touch()
    return root


class Driver:
    """nvidia-ml-py as it answers with two GPUs."""

    NVMLError = RuntimeError

    def __init__(self, used_gb: float) -> None:
        self._used = int(used_gb * 1e9)

    def nvmlInit(self) -> None: ...  # noqa: N802 - the library's names

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return f"handle {index}"

    def nvmlDeviceGetHandleByUUID(self, name: str) -> Any:  # noqa: N802
        return f"handle of {name}"

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        return SimpleNamespace(used=self._used, total=80_000_000_000)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802
        if "MIG" in handle:
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=35)

    def nvmlDeviceGetName(self, handle: Any) -> str:  # noqa: N802
        return "NVIDIA H100"


def test_a_machine_without_gpus_gets_no_line(tmp_path: Path) -> None:
    assert list(check_gpus(Config(), {}, tmp_path)) == []


def test_the_driver_and_the_gpus_that_may_be_used_are_told(tmp_path: Path) -> None:
    found = list(check_gpus(Config(), {"CUDA_VISIBLE_DEVICES": "1"}, with_gpus(tmp_path, 4)))
    assert found[0].text == "1 may be used, NVIDIA driver 570.86.15"


def test_a_gpu_that_is_asked_for_and_not_there_is_a_problem(tmp_path: Path) -> None:
    (finding,) = check_gpus(Config(device="cuda:3"), {}, with_gpus(tmp_path, 2))
    assert (finding.state, "counted from cuda:0" in finding.text) == (State.PROBLEM, True)


def test_a_container_that_was_given_no_gpu_is_a_warning(tmp_path: Path) -> None:
    (finding,) = check_gpus(Config(), {}, with_gpus(tmp_path, 0))
    assert finding.state is State.WARNING


@pytest.mark.parametrize(("used_gb", "state"), [(20.0, State.OK), (79.5, State.WARNING)])
def test_each_gpu_has_a_line_and_a_full_one_a_warning(used_gb: float, state: State) -> None:
    found = list(cards(Cards(["0", "MIG-5d"], Driver(used_gb))))
    assert [finding.state for finding in found] == [state, state]
    assert found[0].text == f"NVIDIA H100, {80 - used_gb:.1f} of 80.0 GB free, 35% busy"
    assert found[1].check == "gpu MIG-5d"


def test_a_torch_for_processors_beside_a_gpu_is_a_warning() -> None:
    (finding,) = library("2.11.0+cpu", {}, None, has_gpu=True)
    assert finding.state is State.WARNING
    assert list(library("2.11.0+cpu", {}, None, has_gpu=False)) == []


def test_what_was_captured_is_told_and_why_something_was_not() -> None:
    info = ModelInfo(
        name="five",
        device="cuda:0",
        batch_sizes=[1, 2, 4, 8, 16, 32],
        captured="6 batch sizes captured, 1, 2, ... 16, 32 for 1 of 2 networks",
        step_s=[[0.001] * 5 + [0.004], [0.001] * 5 + [0.006]],
        notes=["b runs without being captured: it looks at its numbers"],
    )
    first, second = captured(info)
    assert (
        first.text
        == "cuda:0: 6 batch sizes captured, 1, 2, ... 16, 32 for 1 of 2 networks; 2.00 ms at 1, 10.00 ms at 32"
    )
    assert (second.state, second.text) == (State.WARNING, info.notes[0])
    assert list(captured(ModelInfo(name="on processors"), "it has no example")) == []


def test_what_was_not_captured_is_not_said_to_be_though_its_batch_sizes_were_measured() -> None:
    notes = ["a runs without being captured: it looks at its numbers"]
    first, _ = captured(ModelInfo(name="a", device="cuda:0", batch_sizes=[1, 2], step_s=[[0.1, 0.2]], notes=notes))
    assert first.text == "cuda:0: runs eagerly, nothing is captured; 100.00 ms at 1, 200.00 ms at 2"
    (texts,) = captured(ModelInfo(name="a", device="cuda:0", captured="3 batch sizes captured, 1, 2, 4 at 9 lengths"))
    assert texts.text == "cuda:0: 3 batch sizes captured, 1, 2, 4 at 9 lengths"


def test_the_gpu_and_the_versions_of_what_runs_there_are_told() -> None:
    facts = {"device": "cuda:0", "gpu": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0", "cudnn": "91900"}
    (finding,) = library("2.11.0", facts, 141_000_000_000, has_gpu=True)
    assert finding.text == "cuda:0 (NVIDIA H200), torch 2.11.0, cuda 13.0, cudnn 91900, 141.0 GB free"


def test_a_model_on_a_device_that_prepares_by_itself_is_a_warning() -> None:
    *_, finding = captured(ModelInfo(name="five", device="cuda:0"), "prepare() sets attributes of self")
    assert (finding.check, finding.state) == ("five prepare", State.WARNING)

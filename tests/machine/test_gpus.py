"""GPUs are counted from files and the environment, as CUDA itself would count them."""

from __future__ import annotations

from pathlib import Path

import pytest

from timebound.errors import SetupError
from timebound.machine.gpus import chosen, gpus, visible
from timebound.types import ModelInfo
from timebound.workers.messages import WorkerPlan


def machine(root: Path, files: int, listed: int = 0) -> Path:
    """The part of a machine's files that tells of its GPUs."""
    (root / "dev").mkdir()
    for name in ["nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(files))]:
        (root / "dev" / name).touch()
    for number in range(listed):
        (root / "proc/driver/nvidia/gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    return root


def test_a_machine_without_a_driver_has_none(tmp_path: Path) -> None:
    assert gpus({}, tmp_path) == []
    assert gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path) == []


def test_a_container_has_those_that_it_was_given_and_not_all_that_the_driver_lists(tmp_path: Path) -> None:
    assert gpus({}, machine(tmp_path, files=2, listed=4)) == ["0", "1"]


def test_without_files_of_devices_the_drivers_list_counts(tmp_path: Path) -> None:
    assert gpus({}, machine(tmp_path, files=0, listed=3)) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("value", "left"),
    [("", []), ("-1", []), ("1", ["1"]), ("2, 0", ["2", "0"]), ("0,-1,1", ["0"]), ("GPU-8932f937", ["GPU-8932f937"])],
)
def test_the_environment_says_which_ones_may_be_used(tmp_path: Path, value: str, left: list[str]) -> None:
    assert gpus({"CUDA_VISIBLE_DEVICES": value}, machine(tmp_path, files=4)) == left


def test_the_option_chooses_among_them() -> None:
    there = ["2", "5"]
    assert chosen("auto", there) == chosen("cuda", there) == there
    assert chosen("cuda:1", there) == ["5"]
    assert chosen("cpu", there) == chosen("host", there) == chosen("auto", []) == []


@pytest.mark.parametrize(("device", "there"), [("cuda", []), ("cuda:0", []), ("cuda:2", ["0", "1"])])
def test_a_gpu_that_is_not_there_is_refused_in_a_sentence(device: str, there: list[str]) -> None:
    with pytest.raises(SetupError, match=f"--device {device}: there "):
        chosen(device, there)


def test_each_worker_sees_its_own_gpu_first() -> None:
    assert [visible(["2", "5", "7"], place) for place in range(4)] == ["2,5,7", "5,7,2", "7,2,5", "2,5,7"]


@pytest.mark.parametrize(
    ("devices", "options", "wanted"),
    [
        (["cuda:0"], {}, 3),
        (["cuda:0", "cpu"], {}, 3),
        (["cuda:1"], {}, 1),  # the class names one GPU: that one, and no other
        (["cuda:0"], {"workers": 2}, 2),
        (["host"], {}, 1),
        (["cpu"], {}, 8),
    ],
)
def test_there_is_one_worker_for_each_gpu(devices: list[str], options: dict[str, int], wanted: int) -> None:
    plan = WorkerPlan(target="app.py", cores=8, gpus=["0", "1", "2"], **options)  # type: ignore[arg-type]
    models = [ModelInfo(name=str(number), device=device) for number, device in enumerate(devices)]
    assert plan.wanted(2, models) == wanted


def test_a_worker_gets_the_gpu_that_fewest_have_but_where_a_class_names_one_by_its_number() -> None:
    plan = WorkerPlan(target="app.py", cores=8, gpus=["0", "1", "2"], workers=3)
    assert plan.gpu_for([0, 1, None], [ModelInfo(name="any", device="cuda:0")]) == 2
    assert plan.gpu_for([0, 1], [ModelInfo(name="second", device="cuda:1")]) == 0


def test_a_worker_with_a_device_has_two_slots_and_hands_on_half_of_its_share_of_the_cores() -> None:
    plan = WorkerPlan(target="app.py", cores=24, gpus=["0", "1"])
    assert (plan.slots_for(has_device=True), plan.hands_for(has_device=True)) == (2, 6)
    assert (plan.slots_for(has_device=False), plan.hands_for(has_device=False)) == (24, 0)
    chosen_ones = WorkerPlan(target="app.py", cores=24, gpus=["0"], slots=3, hands=0)
    assert (chosen_ones.slots_for(has_device=True), chosen_ones.hands_for(has_device=True)) == (3, 0)

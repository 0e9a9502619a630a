"""Networks on a device: captured before they serve, combined there, and run as they are where that cannot be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.tools.gpu_texts import corrector

from timebound.backends.base import during
from timebound.backends.ensemble import ensemble
from timebound.backends.torch import TorchBackend
from timebound.backends.torch import torch as network
from timebound.devices import form
from timebound.devices.base import adopt, settle_all, take_usage, unprepared
from timebound.devices.host import HostDevice
from timebound.devices.lane import the_lane
from timebound.errors import DeviceLost


class Scores(torch.nn.Module):  # type: ignore[misc]
    """Pictures in bytes to scores."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = torch.nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        return self.layer(x.float().flatten(1) / 255).softmax(-1)


def pictures(count: int) -> Any:
    return np.random.default_rng(count).integers(0, 255, (count, 2, 2, 3), dtype=np.uint8)


@pytest.fixture
def device() -> Iterator[HostDevice]:
    yield from opened()


def opened(**faults: Any) -> Iterator[HostDevice]:
    device = the_lane().call(lambda: HostDevice(**faults))
    adopt(device)
    yield device
    adopt(None)


def settled(net: Any, example: Any, most: int = 8, in_flight: int = 2) -> list[str]:
    """What was told while it was captured."""
    told: list[str] = []
    net(example[:1])
    settle_all(most, in_flight, told.append)
    return told


def both(count: int = 3, **how: Any) -> tuple[Any, Any]:
    """The same ensemble on the device and on the processor."""
    made = [ensemble(*[network(Scores(n), device=where) for n in range(count)], **how) for where in ("host", "cpu")]
    return made[0], made[1]


@pytest.mark.parametrize("how", [{}, {"combine": "weighted", "weights": [1.0, 2.0, 5.0]}, {"combine": "vote"}])
def test_an_ensemble_gives_what_it_gives_on_the_processor(device: HostDevice, how: Any) -> None:
    there, here = both(**how)
    settled(there, pictures(1))
    for count in range(1, 12):  # above the ladder too
        np.testing.assert_allclose(there(pictures(count)), here(pictures(count)), atol=1e-6)


def test_what_loads_and_warms_up_on_the_lane_itself_may_run_batches_there(device: HostDevice) -> None:
    """As a worker does where there is a driver."""

    def load() -> Any:
        there, _ = both()
        settled(there, pictures(1))
        stopped = there.run(pictures(3), lambda so_far: so_far.count < 2)
        return there, there(pictures(5)), stopped

    with ThreadPoolExecutor(1) as threads:  # a lane that waits for itself would never come back
        there, made, stopped = threads.submit(the_lane().call, load).result(60)
    _, here = both()
    np.testing.assert_allclose(made, here(pictures(5)), atol=1e-6)
    np.testing.assert_allclose(stopped, here.run(pictures(3), lambda so_far: so_far.count < 2), atol=1e-6)
    np.testing.assert_allclose(there(pictures(3)), here(pictures(3)), atol=1e-6)


def test_nothing_is_captured_and_nothing_strange_met_once_it_serves(device: HostDevice) -> None:
    there, _ = both()
    told = settled(there, pictures(1))
    assert told[0].startswith("capturing 4 batch sizes x 3 networks")
    before = device.captures
    for count in range(1, 9):
        there(pictures(count))
    assert device.captures == before
    assert there._joined.strangers == 0
    assert list(there.batch_sizes) == [1, 2, 4, 8]
    assert [len(seconds) for seconds in there.member_seconds()] == [4, 4, 4]


def test_the_combination_so_far_is_exact_after_every_member(device: HostDevice) -> None:
    there, here = both()
    x, heard, wanted = pictures(5), list[Any](), list[Any]()
    settled(there, x)
    for net, values in ((there, heard), (here, wanted)):

        def keep(so_far: Any, values: list[Any] = values) -> bool:
            values.append(so_far.value())
            return True

        net.run(x, keep)
    assert len(heard) == 2
    np.testing.assert_allclose(heard, wanted, atol=1e-6)


def test_an_ensemble_told_to_stop_gives_the_members_so_far(device: HostDevice) -> None:
    there, here = both()
    x = pictures(5)
    settled(there, x)
    for _ in range(3):
        stopped = there.run(x, lambda so_far: so_far.count < 1)
        np.testing.assert_allclose(stopped, here.run(x, lambda so_far: so_far.count < 1), atol=1e-6)
        np.testing.assert_allclose(there(x), here(x), atol=1e-6)


def test_all_members_of_a_small_batch_run_at_once(device: HostDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "_TOGETHER_GAIN", 100.0)
    there, here = both()
    settled(there, pictures(1))
    assert len(there.together_seconds()) == 4
    before = device.replays
    np.testing.assert_allclose(there.run_side_by_side(pictures(3), 2), here(pictures(3)), atol=1e-6)
    assert device.replays == before + 1


def test_batches_of_several_threads_do_not_meet(device: HostDevice) -> None:
    there, here = both()
    settled(there, pictures(1), most=32)
    with ThreadPoolExecutor(6) as threads:
        for count, made in zip(range(1, 33), threads.map(there, map(pictures, range(1, 33))), strict=True):
            np.testing.assert_allclose(made, here(pictures(count)), atol=1e-6)


def test_device_time_is_told_to_the_thread_that_called(device: HostDevice) -> None:
    there, _ = both()
    settled(there, pictures(1))
    take_usage()
    there(pictures(3))
    used = take_usage()
    assert used.device_s > 0
    assert used.waited_s >= 0
    assert take_usage().device_s == 0


def test_device_time_is_told_member_by_member(device: HostDevice) -> None:
    there, _ = both()
    settled(there, pictures(1))
    told: list[float] = []
    take_usage()

    def after(_: Any) -> bool:
        told.append(take_usage().device_s)
        return True

    there.run(pictures(3), after)
    assert len(told) == 2
    assert all(seconds > 0 for seconds in (*told, take_usage().device_s))


def test_rows_in_pinned_memory_go_to_the_device_without_a_copy(device: HostDevice) -> None:
    there, here = both()
    settled(there, pictures(1))
    area = bytearray(8 * 12)
    device.pin(area)
    rows = np.frombuffer(area, np.uint8).reshape(8, 2, 2, 3)
    rows[:3] = pictures(3)
    np.testing.assert_allclose(there(rows[:3]), here(pictures(3)), atol=1e-6)


class Looks(Scores):
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y if y.sum().item() > 0 else -y


class Aside(Scores):
    """Computes with something outside of the device."""

    calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return super().forward(x) + self.calls


class Writes(Scores):
    def forward(self, x: Any) -> Any:
        return super().forward(x.bitwise_right_shift_(1))


@pytest.mark.parametrize(
    ("kind", "reason"), [(Looks, "while capturing.*test_networks.py, line"), (Aside, "other numbers")]
)
def test_a_network_that_cannot_be_captured_runs_as_it_is_and_says_why(
    device: HostDevice, kind: Callable[[int], torch.nn.Module], reason: str
) -> None:
    net = network(kind(1), device="host")
    settled(net, pictures(1))
    assert len(net.notes()) == 1
    assert re.search(f"runs without being captured: .*{reason}", net.notes()[0])
    assert net(pictures(3)).shape == (3, 5)
    assert list(net.batch_sizes) == [1, 2, 4, 8]
    assert all(seconds > 0 for seconds in net.member_seconds()[0])


def test_an_ensemble_with_a_member_that_cannot_be_captured_still_answers(device: HostDevice) -> None:
    there = ensemble(network(Scores(1), device="host"), network(Looks(2), device="host"))
    here = ensemble(network(Scores(1)), network(Looks(2)))
    settled(there, pictures(1))
    np.testing.assert_allclose(there(pictures(3)), here(pictures(3)), atol=1e-6)
    np.testing.assert_allclose(
        there.run(pictures(3), lambda so_far: False), here.run(pictures(3), lambda so_far: False), atol=1e-6
    )


def test_a_network_may_write_into_its_input(device: HostDevice) -> None:
    there = ensemble(network(Writes(1), device="host"), network(Scores(2), device="host"))
    here = ensemble(network(Writes(1)), network(Scores(2)))
    settled(there, pictures(1))
    np.testing.assert_allclose(there(pictures(3)), here(pictures(3)), atol=1e-6)


def test_where_memory_runs_out_the_ladder_ends_earlier() -> None:
    for _ in opened(rooms={"capture": 4}):
        net = network(Scores(1), device="host")
        settled(net, pictures(1))
        assert list(net.batch_sizes) == [1, 2, 4]
        assert "does not hold batches of 8" in net.notes()[0]
        assert net(pictures(7)).shape == (7, 5)  # in pieces


@pytest.mark.parametrize("what", ["device", "staging"])
def test_where_memory_for_rows_runs_out_the_ladder_ends_earlier_too(what: str) -> None:
    for _ in opened(rooms={what: 4}):
        net = network(Scores(1), device="host")
        settled(net, pictures(1))
        assert list(net.batch_sizes) == [1, 2, 4]
        assert "does not hold batches of 8" in net.notes()[0]
        np.testing.assert_allclose(net(pictures(7)), network(Scores(1))(pictures(7)), atol=1e-6)


def test_where_memory_runs_out_for_all_networks_at_once_the_ladder_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "_TOGETHER_GAIN", 100.0)
    for device in opened(rooms={"beside": 2}):
        there, here = both()
        settled(there, pictures(1))
        assert list(there.batch_sizes) == [1, 2, 4, 8]
        assert len(there.together_seconds()) == 2
        assert there.notes() == [
            "the networks do not run beside each other in one graph: no memory is left for that at 4 items"
        ]
        assert device.captures == 3 * 4 + 2
        np.testing.assert_allclose(there(pictures(8)), here(pictures(8)), atol=1e-6)


def test_replays_that_give_other_numbers_are_not_used() -> None:
    for _ in opened(changes=lambda tensor: tensor * 1.1):
        net = network(Scores(1), device="host")
        settled(net, pictures(1))
        np.testing.assert_allclose(net(pictures(3)), network(Scores(1))(pictures(3)), atol=1e-6)
        assert "other numbers" in net.notes()[0]


def test_a_shape_that_was_not_there_before_is_answered_and_counted(device: HostDevice) -> None:
    net = network(torch.nn.ReLU(), device="host")
    settled(net, np.ones((1, 3), np.float32))
    assert net(np.ones((2, 5), np.float32)).shape == (2, 5)
    assert net._networks is not None
    assert net._networks.strangers == 1


def test_a_lost_device_is_told_as_such(device: HostDevice) -> None:
    net: TorchBackend = network(Scores(1), device="host")
    settled(net, pictures(1))
    device.lose("an illegal memory access")
    with pytest.raises(DeviceLost, match="illegal memory access"):
        net(pictures(1))


def test_half_precision_comes_back_as_float32(device: HostDevice) -> None:
    torch.manual_seed(1)
    x, layer = np.ones((3, 4), np.float32), torch.nn.Linear(4, 2)
    wanted = network(layer)(x)
    net = network(layer, device="host", dtype="bfloat16")
    settled(net, x)
    made = net(x)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, wanted, atol=0.02)


class Tagger(torch.nn.Module):  # type: ignore[misc]
    """Tokens to scores for each of them, and one number for the whole text; token 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(50, 4, padding_idx=0)

    def forward(self, tokens: Any) -> Any:
        each = self.embedding(tokens)
        return each, each.sum((1, 2))


def texts(count: int, length: int) -> Any:
    return np.random.default_rng(count * length).integers(1, 50, (count, length))


def test_texts_of_every_length_run_in_a_shape_that_was_captured(device: HostDevice) -> None:
    there, here = network(Tagger(), device="host", longest=20), network(Tagger())
    settled(there, texts(1, 5), most=4)
    before = device.captures
    assert before == 4 * 3  # lengths of 8, 12, 16 and 20, batches of 1, 2 and 4
    for count in range(1, 6):
        for length in range(1, 21):
            for made, wanted in zip(there(texts(count, length)), here(texts(count, length)), strict=True):
                np.testing.assert_allclose(made, wanted, atol=1e-5)
    assert device.captures == before
    assert there._networks is not None
    assert there._networks.strangers == 0


def test_texts_of_one_captured_length_are_cut_back_too(device: HostDevice) -> None:
    there, here = network(Tagger(), device="host", longest=8), network(Tagger())
    settled(there, texts(1, 5), most=2)
    for length in (3, 8):
        for made, wanted in zip(there(texts(2, length)), here(texts(2, length)), strict=True):
            np.testing.assert_allclose(made, wanted, atol=1e-5)


def test_an_ensemble_of_texts_tells_the_combination_so_far_without_padding(device: HostDevice) -> None:
    nets = [network(_Each(seed), device="host", longest=16) for seed in (1, 2)]
    there, here = ensemble(*nets), ensemble(*[network(_Each(seed)) for seed in (1, 2)])
    settled(there, texts(1, 5), most=2)
    x = texts(2, 11)
    np.testing.assert_allclose(there(x), here(x), atol=1e-6)
    there.run(x, lambda so_far: so_far.value().shape == (2, 11, 4) or pytest.fail("it is padded"))


class _Each(Tagger):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(50, 4, padding_idx=0)

    def forward(self, tokens: Any) -> Any:
        return self.embedding(tokens)


def test_a_text_longer_than_the_longest_is_answered_as_it_is(device: HostDevice) -> None:
    there = network(Tagger(), device="host", longest=16)
    settled(there, texts(1, 5), most=2)
    assert there(texts(2, 30))[0].shape == (2, 30, 4)


def test_no_member_is_begun_that_was_neither_sure_nor_asked_for(device: HostDevice) -> None:
    there, _ = both(5)
    settled(there, pictures(1))
    told: list[int] = []

    def stop_after(most: int) -> Callable[[Any], bool]:
        def hear(mixture: Any) -> bool:
            told.append(mixture.count)
            return bool(mixture.count < most)

        return hear

    for sure, most in ((3, 3), (1, 1), (2, 4)):
        told.clear()
        before = device.replays
        there.run(pictures(4), stop_after(most), sure)
        the_lane().call(lambda: None)
        assert (told[-1], device.replays - before) == (most, most)


def test_time_on_the_device_is_told_with_each_report(device: HostDevice) -> None:
    there, _ = both(3)
    settled(there, pictures(1))
    take_usage()
    used: list[float] = []

    def hear(mixture: Any) -> bool:
        used.append(take_usage().device_s)
        return True

    there.run(pictures(4), hear)
    used.append(take_usage().device_s)
    assert all(seconds > 0 for seconds in used)
    assert max(used) < sum(used) * 0.9


def test_a_sentence_is_written_token_by_token_in_one_graph(device: HostDevice) -> None:
    make = partial(corrector, width=16, layers=1, longest=12)
    there, here = network(make, device="host", longest=12), network(make)
    settled(there, texts(1, 5), most=2)
    assert there.notes() == []
    before = device.replays
    np.testing.assert_array_equal(there(texts(2, 7)), here(texts(2, 7)))
    assert device.replays == before + 1


def test_what_is_compiled_once_it_serves_is_told(device: HostDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = pytest.importorskip("torch._dynamo.utils").counters
    monkeypatch.setitem(counters["stats"], "unique_graphs", 0)
    is_serving = False

    class Compiles(Looks):
        def forward(self, x: Any) -> Any:
            if is_serving:
                counters["stats"]["unique_graphs"] += 1  # as torch counts when it compiles
            return super().forward(x)

    net, told = network(Compiles(1), device="host"), list[bool]()
    settled(net, pictures(1))
    with during(unprepared, told.append):
        net(pictures(3))
        assert told == []
        is_serving = True
        net(pictures(3))
    assert told == [False]


def test_a_shape_that_was_not_there_before_is_told_and_whether_it_is_new(device: HostDevice) -> None:
    net, told = network(torch.nn.ReLU(), device="host"), list[bool]()
    settled(net, np.ones((1, 3), np.float32))
    with during(unprepared, told.append):
        for count, width in ((2, 3), (2, 5), (2, 5), (1, 5), (2, 6)):
            net(np.ones((count, width), np.float32))
    assert told == [True, False, True, True]


def test_a_compiled_network_meets_only_the_sizes_that_were_prepared(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[tuple[int, ...]] = []

    def compiled(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Any) -> Any:
            met.append(tuple(x.shape))
            return call(x)

        return run

    monkeypatch.setattr("timebound.backends.torch.compiled", compiled)
    net = network(torch.nn.ReLU(), device="host", compile=True)
    net(np.ones((1, 3), np.float32))
    assert met == []  # the example itself is no size to compile for
    settle_all(16, 2, lambda text: None)
    net(np.ones((5, 3), np.float32))
    net(np.ones((5, 4), np.float32))  # a shape that nobody expected
    assert set(met) == {(1, 3), (8, 3), (16, 3)}
    assert list(net.batch_sizes) == [1, 8, 16]

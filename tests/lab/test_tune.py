from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from msgspec import structs

import timebound as tb
from timebound.clock import ManualClock
from timebound.config import resolve
from timebound.errors import SetupError
from timebound.lab.curve import MOST_RUNS, Facts, Point, body_of, measure, sizes
from timebound.lab.tune import Settings, Target, Trial, Tuning, average, candidates, choose, hopeful
from timebound.lab.tuned import curve_table, explain, settings_text, trial_table, warning, write_settings
from timebound.types import ModelInfo, Timing
from timebound.workers.runner import Runner

FACTS = Facts(ModelInfo(name="m", max_batch=8, is_parallel=True), b"{}")
FIRST, SECOND, THIRD = Settings(1, 2, 1), Settings(1, 1, 2), Settings(2, 1, 1)


def trial(settings: Settings, useful: float, memory: float = 100.0, others: float = 0.0) -> Trial:
    return Trial(settings, 100.0, useful, 0.9, 5.0, memory, others)


def points(*per_item_ms: float) -> list[Point]:
    return [
        Point(1 << n, each * (1 << n) / 1000, Timing(0.0, each / 1000, 0.0), 50.0) for n, each in enumerate(per_item_ms)
    ]


@pytest.mark.parametrize(
    ("cores", "is_parallel", "wanted"),
    [
        (1, True, [(1, 1, 1)]),
        (2, True, [(1, 2, 1), (1, 1, 2), (2, 1, 1)]),
        (2, False, [(2, 1, 1), (1, 1, 2)]),
        (4, False, [(4, 1, 1), (2, 1, 2), (1, 1, 4)]),
        (6, True, [(1, 6, 1), (1, 3, 2), (1, 1, 4), (1, 1, 6), (2, 3, 1), (4, 1, 1), (6, 1, 1)]),
    ],
)
def test_what_the_server_would_choose_is_tried_first_and_nothing_twice(
    cores: int, is_parallel: bool, wanted: list[tuple[int, int, int]]
) -> None:
    assert candidates(cores, is_parallel) == [Settings(*each) for each in wanted]


def test_the_most_useful_work_in_time_wins() -> None:
    assert choose([trial(FIRST, 100), trial(SECOND, 140), trial(THIRD, 120)]).settings == SECOND


def test_noise_moves_nobody_away_from_what_the_server_would_choose() -> None:
    assert choose([trial(FIRST, 100), trial(SECOND, 102)]).settings == FIRST


def test_who_came_to_the_last_round_is_preferred_to_who_was_left_behind_in_a_faster_hour() -> None:
    left_behind, second, third = trial(FIRST, 150), trial(SECOND, 120), trial(THIRD, 130)
    averaged = average([left_behind, second, third, second, third])
    assert choose(averaged).settings == THIRD


def test_turns_are_averaged_in_the_order_of_their_settings() -> None:
    (first, second) = average([trial(FIRST, 100), trial(SECOND, 50), trial(FIRST, 200, others=1.0)])
    assert (first.settings, first.useful_rps, first.foreign_cores) == (FIRST, 150.0, 1.0)
    assert second.useful_rps == 50.0


def test_who_is_far_behind_is_not_tried_again() -> None:
    trials = [trial(FIRST, 100), trial(SECOND, 84), trial(THIRD, 86)]
    assert hopeful([FIRST, SECOND, THIRD], trials, 1) == [FIRST, THIRD]


def test_after_two_rounds_less_is_enough_to_be_left_behind() -> None:
    trials = [trial(FIRST, 100), trial(SECOND, 84), trial(THIRD, 88)]
    assert hopeful([FIRST, SECOND, THIRD], [*trials, trial(FIRST, 100), trial(THIRD, 90)], 2) == [FIRST]
    assert hopeful([FIRST, SECOND, THIRD], [*trials, trial(FIRST, 100), trial(THIRD, 99)], 2) == [FIRST, THIRD]


def test_a_round_that_was_cut_short_decides_nothing() -> None:
    trials = [trial(FIRST, 90), trial(SECOND, 90), trial(FIRST, 90), trial(SECOND, 90), trial(FIRST, 60)]
    assert hopeful([FIRST, SECOND], trials, 2) == [FIRST, SECOND]


def test_who_was_disturbed_is_tried_again_and_at_first_everybody_is() -> None:
    disturbed = [trial(FIRST, 100), trial(SECOND, 20, others=0.5), trial(THIRD, 20)]
    assert hopeful([FIRST, SECOND, THIRD], disturbed, 1) == [FIRST, SECOND]
    assert hopeful([FIRST, SECOND, THIRD], [], 0) == [FIRST, SECOND, THIRD]


def test_the_choice_is_explained_in_sentences() -> None:
    trials = [trial(FIRST, 100), trial(SECOND, 140, memory=90)]
    text = explain(points(10.0, 6.0, 5.0), trials, trials[1], 1.0)
    assert text.startswith("1 worker x 1 slot x 2 threads answers +40% in time of what the server's own choice")
    assert "In a batch of 4 an item costs 5.00 ms, 50% less than alone" in text
    assert "1 worker x 2 slots x 1 thread: -29% answered in time, +11% memory." in text


@pytest.mark.parametrize(("useful", "is_said"), [(99.0, True), (60.0, False)])
def test_a_load_that_was_none_is_told_of_but_not_one_that_cost_members(useful: float, is_said: bool) -> None:
    in_time = Trial(FIRST, 100.0, useful, 1.0, 5.0, 100.0)
    assert ("nothing that could be asked was too much" in explain(points(10.0), [in_time], in_time, 1.0)) == is_said


def test_batches_that_do_not_pay_or_do_not_fit_are_not_praised() -> None:
    trials = [trial(FIRST, 100)]
    assert "Batches do not make an item cheaper" in explain(points(5.0, 5.0), trials, trials[0], 1.0)
    # A batch of two would take more than its share of the deadline.
    assert "Batches do not make an item cheaper" in explain(points(30.0, 20.0), trials, trials[0], 0.09)


def test_a_disturbed_machine_is_told_of() -> None:
    assert warning([trial(FIRST, 1, others=0.1)]) == ""
    assert "other programs used up to 1.5 cores" in warning([trial(FIRST, 1, others=0.1), trial(SECOND, 1, others=1.5)])


def test_tables_have_a_line_for_each() -> None:
    assert len(curve_table(points(5.0, 4.0, 3.0)).splitlines()) == 4
    assert trial_table([trial(FIRST, 100)]).splitlines()[1].startswith("1 worker x 2 slots x 1 thread")
    twice = average([trial(FIRST, 100), trial(FIRST, 120)])
    assert trial_table(twice).splitlines()[1].endswith(" 2")


def test_the_memory_of_each_member_is_told_below_the_table_of_an_ensemble() -> None:
    *others, last = points(10.0, 9.0)
    last = structs.replace(last, members_mib={"small": 4.26, "large": 61.0})
    assert "memory" not in curve_table(others).splitlines()[-1]
    assert curve_table([*others, last]).splitlines()[-1] == "memory MiB of each member: small 4.3, large 61.0"


def test_settings_replace_their_lines_and_leave_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "timebound.toml"
    file.write_text('# ours\nport = 9000\nslots = 7 # old\nhost = "0.0.0.0"\n')
    write_settings(file, THIRD)
    assert file.read_text() == 'workers = 2\nthreads = 1\n# ours\nport = 9000\nslots = 1\nhost = "0.0.0.0"\n'
    assert settings_text("", FIRST) == "workers = 1\nslots = 2\nthreads = 1\n"


def test_sizes_double_up_to_the_largest_batch() -> None:
    assert sizes(1) == [1]
    assert sizes(8) == [1, 2, 4, 8]
    assert sizes(10) == [1, 2, 4, 8, 10]


class Slow(tb.Model):
    """Takes 10 ms and 1 ms for each item, on the clock that it is given."""

    clock = ManualClock()

    class Request(tb.Struct):
        n: int

    def infer(self, batch: list[tb.Struct]) -> list[int]:
        self.clock.advance(0.010 + 0.001 * len(batch))
        return [1] * len(batch)


def test_a_point_has_the_median_time_of_the_batch_and_its_stages() -> None:
    runner = Runner(Slow(), Slow.clock)
    point = measure(runner, body_of(runner.model), 4, 0.1, Slow.clock)
    assert point.seconds == pytest.approx(0.014)
    assert point.per_item_s == pytest.approx(0.0035)
    assert point.timing.infer_s == pytest.approx(0.014)


def test_a_model_that_cannot_answer_its_example_is_named() -> None:
    class Picky(Slow):
        example: ClassVar[dict[str, int]] = {"n": 0}

        def prepare(self, request: object) -> object:
            raise tb.BadInput("no")

    with pytest.raises(SetupError, match="cannot answer its own example in a batch of 2"):
        measure(Runner(Picky(), Slow.clock), b'{"n": 0}', 2, 0.1, Slow.clock)


def test_a_fast_batch_is_not_run_for_ever() -> None:
    class Instant(tb.Model):
        runs = 0

        def infer(self, batch: list[bytes]) -> list[int]:
            Instant.runs += 1
            return [0] * len(batch)

    measure(Runner(Instant(), ManualClock()), b"", 1, 1.0, ManualClock())
    assert Instant.runs == MOST_RUNS


def test_a_record_is_taken_up_for_the_same_target_only(tmp_path: Path) -> None:
    app, state = tmp_path / "app.py", tmp_path / "state.json"
    app.write_text("# one")
    tuning = Tuning(Target(app, cores=2), state, lambda text: None)
    tuning.record.facts = FACTS
    tuning.record.curves["1 thread"] = points(1.0)
    tuning.record.trials.append(trial(FIRST, 7.0))
    tuning.save()
    again = Tuning(Target(app, cores=2), state, lambda text: None)
    assert again.resume()
    assert again.record.trials[0].useful_rps == 7.0
    assert not Tuning(Target(app, cores=4), state, lambda text: None).resume()
    app.write_text("# another one")
    assert not Tuning(Target(app, cores=2), state, lambda text: None).resume()


def test_an_engine_is_a_flag_a_word_and_a_line(tmp_path: Path) -> None:
    settings = Settings(1, 2, 1, "openvino-bf16")
    assert settings.flags[-2:] == ["--engine", "openvino-bf16"]
    assert str(settings) == "1 worker x 2 slots x 1 thread on openvino-bf16"
    assert 'engine = "openvino-bf16"\n' in settings_text("", settings)


@pytest.mark.parametrize(
    "before",
    ['engine = "onnxruntime"\n', '[engine]\nother = "openvino-f32"\n', 'engine = { other = "openvino-f32" }\n', ""],
)
def test_the_engine_of_one_model_leaves_the_others_theirs(tmp_path: Path, before: str) -> None:
    file = tmp_path / "timebound.toml"
    file.write_text(f"port = 9000\n{before}")
    was = resolve({}, {}, tmp_path).engines
    write_settings(file, Settings(1, 2, 1, "openvino-bf16"), "digits")
    config = resolve({}, {}, tmp_path)
    assert config.engines == {**was, "digits": "openvino-bf16"}
    assert (config.port, config.slots) == (9000, 2)
    write_settings(file, Settings(1, 2, 1, "onnxruntime"))
    assert resolve({}, {}, tmp_path).engines == {"": "onnxruntime"}

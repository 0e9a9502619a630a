"""Every benchmark has bars, and says by its exit code when one of them does not hold; nothing is measured here."""

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from benchmarks.serving import abuse, fuzz, once
from benchmarks.tools.abusers import ABUSERS
from benchmarks.tools.bars import Bar, Figures, conclude, judge, zero
from benchmarks.tools.commandline import add_choice
from benchmarks.tools.images import beside_the_contest

ROOT = Path(__file__).parents[1] / "benchmarks"
SERVING = sorted(path.stem for path in (ROOT / "serving").glob("*.py") if path.stem != "__init__")
PROGRAMS = [
    *(f"benchmarks.serving.{name}" for name in SERVING),
    "benchmarks.policy.scheduler",
    "benchmarks.policy.device",
    "benchmarks.policy.drift",
    "benchmarks.peers.__main__",
]

ONCE_GOOD = {
    "sharing_answers": 6000,
    "sharing_equal": 1.0,
    "sharing_computed": 1000,
    "computed_twice": 0,
    "unanswered": 0,
    "wrong": 0,
    "taken_over": 100,
    "take_over_s": 0.55,
    "take_over_limit_s": 0.6,
    "late_redis_faults": 0,
    "failed_redis_faults": 0,
    "failovers": 1,
    "redis_added_ms": 0.4,
}


def bars_of(name: str) -> tuple[Bar, ...]:
    bars: tuple[Bar, ...] = importlib.import_module(f"benchmarks.serving.{name}").BARS
    return bars


def test_no_benchmark_lies_beside_its_folders() -> None:
    assert {path.name for path in ROOT.iterdir() if path.is_file()} <= {"__init__.py", "README.md"}
    assert SERVING  # or the tests below look at nothing


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_benchmark_takes_quick_and_json(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module: ModuleType = importlib.import_module(program)
    monkeypatch.setattr(sys, "argv", [program, "--help"])
    with pytest.raises(SystemExit):
        module.main()
    told = capsys.readouterr().out
    assert "--quick" in told
    assert "--json" in told


@pytest.mark.parametrize("name", SERVING)
def test_every_benchmark_is_listed_with_all_its_bars(name: str) -> None:
    rows = (ROOT / "README.md").read_text().splitlines()
    (row,) = [row for row in rows if f"`benchmarks/serving/{name}.py`" in row]
    assert [bar.name for bar in bars_of(name) if f"`{bar.name}`" not in row] == []


@pytest.mark.parametrize("name", SERVING)
def test_figures_beyond_every_bar_fail_and_figures_on_it_hold(name: str) -> None:
    bars = bars_of(name)
    on = {bar.name: max(bar.at_least, min(bar.at_most, 0.0)) for bar in bars}
    assert judge(name, on, bars, is_quick=False) == 0
    for bar in bars:
        beyond = bar.at_most + bar.noise + 0.01 if bar.at_most < float("inf") else bar.at_least - bar.noise - 0.01
        assert judge(name, {**on, bar.name: beyond}, bars, is_quick=False) == 1, bar.name


def test_failing_bar_is_told_with_its_figure_and_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge("once", {"take_over_s": 11.8}, [Bar("take_over_s", at_most=2.1)], is_quick=False) == 1
    told = capsys.readouterr()
    assert told.out.split() == ["FAILS", "take_over_s", "11.8", "at", "most", "2.1"]
    assert told.err == "once: take_over_s is 11.8, not at most 2.1\n"


def test_figure_on_its_limit_holds_and_within_the_noise_too() -> None:
    bar = Bar("share", at_least=0.93, noise=0.02)
    assert bar.holds(0.93)
    assert bar.holds(0.915)
    assert not bar.holds(0.90)
    assert bar.limits == "at least 0.93, give or take 0.02"


def test_what_is_no_number_does_not_hold() -> None:
    assert judge("x", {"ratio": float("nan")}, [Bar("ratio", at_most=1.2)], is_quick=False) == 1


def test_short_run_says_what_it_does_not_judge(capsys: pytest.CaptureFixture[str]) -> None:
    bars = [*zero("late"), Bar("ratio", at_least=3.0, is_quick=False)]
    assert judge("x", {"late": 0, "ratio": 1.0}, bars, is_quick=True) == 0
    assert "too short a run to judge: ratio" in capsys.readouterr().out
    assert judge("x", {"late": 0, "ratio": 1.0}, bars, is_quick=False) == 1


@pytest.mark.parametrize("is_quick", [False, True])
def test_part_that_was_left_out_on_purpose_is_told_and_does_not_fail(
    is_quick: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    figures: Figures = {"late": 0, "engine": "onnxruntime"}
    assert judge("x", figures, zero("late", "twice"), is_quick, is_partial=not is_quick) == 0
    assert "not measured: twice" in capsys.readouterr().out


def test_a_figure_that_is_missing_otherwise_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge("x", {"late": 0}, zero("late", "twice"), is_quick=False) == 1
    assert "x: twice was not measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "is_partial"),
    [([], False), (["--only", "stall,rate,wrk"], False), (["--only", "rate"], True), (["--kinds", "b"], True)],
)
def test_a_choice_that_leaves_something_out_is_on_purpose(arguments: list[str], is_partial: bool) -> None:
    parser = argparse.ArgumentParser()
    add_choice(parser, "--only", ("wrk", "stall", "rate"), "parts")
    add_choice(parser, "--kinds", ("a", "b"), "kinds")
    assert parser.parse_args(arguments).is_partial is is_partial


def test_figures_are_kept_when_a_bar_fails(tmp_path: Path) -> None:
    options = argparse.Namespace(json=tmp_path / "figures.json", quick=False)
    assert conclude("x", options, {"late": 3}, zero("late")) == 1
    assert json.loads(options.json.read_text()) == {"late": 3}


@pytest.mark.parametrize("is_quick", [False, True])
def test_once_fails_when_a_dead_servers_keys_are_taken_over_late(is_quick: bool) -> None:
    assert judge("once", ONCE_GOOD, once.BARS, is_quick) == 0
    assert judge("once", {**ONCE_GOOD, "take_over_s": 11.8}, once.BARS, is_quick) == 1


def test_once_fails_when_nothing_was_taken_over() -> None:
    assert judge("once", {**ONCE_GOOD, "taken_over": 0, "take_over_s": 0.2}, once.BARS, is_quick=False) == 1


def test_names_of_bars_are_names_of_figures() -> None:
    seen = abuse.Findings()
    for kind in ("quiet", *ABUSERS):
        seen.p50_ms[kind] = seen.p99_ms[kind] = seen.busy[kind] = [1.0]
    for kind in ABUSERS:
        seen.ratios[kind] = seen.control_ratios[kind] = [1.0]
        seen.stall_ms[kind] = seen.growth_mib[kind] = seen.over_counted[kind] = 1.0
        seen.held_ms[kind] = seen.connection_kb[kind] = 1.0
    assert {bar.name for bar in abuse.BARS} <= set(abuse.figures(seen))
    assert {f"{kind}_control_p99_ratio" for kind in ABUSERS} <= set(abuse.figures(seen))
    assert {bar.name for bar in fuzz.BARS} <= set(fuzz.figures({"http": fuzz.Seen()}))
    assert {bar.name for bar in once.BARS} <= set(ONCE_GOOD)


def test_images_that_were_built_are_shown_beside_those_of_the_contest() -> None:
    figures = {"rebuild_model_s": 8.6, "rebuild_code_s": 9.3, "image_mb": 424.0}
    rows = beside_the_contest({**figures, "unanswered": 0}).splitlines()[1:]
    assert [row.split() for row in rows] == [
        ["rebuild_model_s", "8.6", "31.0", "11.0"],
        ["rebuild_code_s", "9.3", "31.0", "11.0"],
        ["image_mb", "424.0", "5,400.0", "2,750.0"],
    ]
    assert beside_the_contest({"unanswered": 0}) == ""

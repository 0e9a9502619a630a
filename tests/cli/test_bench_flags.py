"""Which load the flags of `timebound bench` ask for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from timebound.cli import bench, main
from timebound.errors import SetupError
from timebound.lab.bench import Plan, loop_of
from timebound.lab.load.loops import ClosedLoop, OpenLoop


def chosen(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_to(parser.add_subparsers())
    return parser.parse_args(["bench", "http://h", *flags])


def plans(*flags: str) -> list[Plan]:
    return bench.make_plans(chosen(*flags))


def test_without_flags_one_client_asks_for_ten_seconds() -> None:
    (plan,) = plans()
    assert (plan.clients, plan.seconds, plan.rate, plan.title) == (1, 10.0, None, "1 client")
    assert isinstance(loop_of(plan)[0], ClosedLoop)


def test_several_rates_or_clients_are_a_sweep() -> None:
    assert [plan.rate for plan in plans("--rates", "20,40,80")] == [20.0, 40.0, 80.0]
    assert [plan.clients for plan in plans("--concurrency", "1,10")] == [1, 10]
    assert all(isinstance(loop_of(plan)[0], OpenLoop) for plan in plans("--rate", "5"))


def test_users_think_two_to_five_seconds_unless_told_otherwise() -> None:
    assert plans("--users", "70")[0].think_s == (2.0, 5.0)
    assert plans("--users", "70", "--think", "500ms-1")[0].think_s == (0.5, 1.0)


def test_a_number_of_requests_ends_the_run_in_place_of_the_time() -> None:
    (plan,) = plans("--clients", "5", "--requests", "10000")
    assert (plan.requests, plan.seconds) == (10_000, None)
    (open_plan,) = plans("--rate", "100", "--requests", "500")
    assert loop_of(open_plan)[1] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("contest-10x10", {"clients": 10, "requests": 100, "resends": 2, "timeout_s": 1.0, "is_shared_out": True}),
        ("10000-by-5", {"clients": 5, "requests": 10_000}),
        ("users-70", {"clients": 70, "think_s": (2.0, 5.0), "seconds": 60.0}),
        ("users-100", {"clients": 100, "think_s": (2.0, 5.0), "seconds": 60.0}),
        ("1000-by-50", {"clients": 50, "requests": 1000}),
    ],
)
def test_a_scenario_is_a_load_by_name(name: str, wanted: dict[str, Any]) -> None:
    (plan,) = plans("--scenario", name)
    assert {field: getattr(plan, field) for field in wanted} == wanted


def test_a_flag_beats_its_scenario() -> None:
    (plan,) = plans("--scenario", "contest-10x10", "--clients", "20", "--timeout", "250ms")
    assert (plan.clients, plan.timeout_s, plan.resends, plan.requests) == (20, 0.25, 2, 100)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--rate", "5", "--users", "7"), "--rate and --users are two kinds of load"),
        (("--think", "2-5"), "give --users too"),
    ],
)
def test_loads_that_do_not_go_together_are_refused(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        plans(*flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("http://h", "--rate", "0"),
        ("http://h", "--rate", "many"),
        ("http://h", "--clients", "0"),
        ("http://h", "--think", "5-2"),
        ("http://h", "--duration", "soon"),
        ("http://h", "--scenario", "war"),
    ],
)
def test_a_flag_that_cannot_be_read_is_a_mistake_of_use(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", *flags])
    assert left.value.code == 2
    assert flags[1].lstrip("-") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("nowhere.py",), "nowhere.py does not exist"),
        (("localhost:8000",), "write http://localhost:8000"),
        (("localhost:8000/predictions/mood",), "write http://localhost:8000/predictions/mood"),
        (("nowhere.py:Mood",), "nowhere.py does not exist"),
        (("ftp://h",), "is no URL of a server"),
        (("http://h", "--require", "p99<1"), "give its unit"),
        (("http://h", "--json", "no/such/folder/x.json"), "there is no folder"),
        (("http://h", "--body", "{}", "--jsonl", "x"), "--body and --jsonl are two kinds"),
        (("http://h", "--expect", "field:a"), "give that too"),
        (("http://h", "--expect-field", "a"), "give them with --expect"),
        (("http://127.0.0.1:1",), "connection refused; is the server running"),
    ],
)
def test_a_mistake_is_told_in_a_sentence_before_any_load(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *flags]) == 2
    assert words in capsys.readouterr().err


def test_a_name_in_a_file_is_served_as_by_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.py").touch()

    def serving(target: Path, arguments: list[str]) -> None:
        raise SetupError(f"asked to serve {target.name}")

    monkeypatch.setattr(bench, "serving", serving)
    assert main(["bench", f"{tmp_path}/app.py:Mood"]) == 2
    assert "asked to serve app.py:Mood" in capsys.readouterr().err


def test_the_help_lists_scenarios_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    said = capsys.readouterr().out
    assert "contest-10x10" in said
    assert "exit codes" in said

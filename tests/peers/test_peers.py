"""The table of peers from recorded measurements, their requests, and their environments; no peer is installed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.peers.__main__ import main
from benchmarks.peers.environments import Environment, NotInstalled, installed_version, provide
from benchmarks.peers.record import Closed, Duel, Kill, Overload, Poison, Row, Run, read_run, write_row, write_run
from benchmarks.peers.report import figures, table
from benchmarks.peers.roster import CONTESTANTS
from benchmarks.peers.traffic import LISTED, PLAIN, V2, Form, PeerTraffic
from benchmarks.tools.goodput_report import Level
from benchmarks.tools.load import WARM_UP_S, Window
from benchmarks.tools.workload import Sample

from timebound.lab.load.attempts import Attempt, End, Question
from timebound.lab.load.client import Reply


def level(load: float, goodput: float) -> Level:
    return Level(
        load=load,
        offered=200 * load,
        questions=1000,
        in_time_by_model=goodput,
        full_rps=100 * load * goodput,
        fallback_in_time=0.0,
        others_in_time=0.0,
        goodput=goodput,
        mean_members=2.0,
        p50_ms=100.0,
        p99_ms=200.0,
        late=0,
        unanswered=0,
        wrong=0,
        statuses={503: 2},
        resends=0,
        asked_to_wait=0,
        client_cpu=0.1,
        client_lag_p99_ms=1.0,
        client_lag_max_ms=2.0,
        connections=10,
        foreign_cores=0.01,
    )


def row(name: str, goodputs: dict[float, float], rps: float = 190.0) -> Row:
    contestant = CONTESTANTS[name]
    return Row(
        name=name,
        is_ours=contestant.is_ours,
        is_tuned=contestant.is_tuned,
        package=contestant.package,
        version="1.2.3",
        settings=contestant.settings,
        capacity=200.0,
        bare_rps=200.0,
        first_answer_s=1.5,
        pss_mib=500.0,
        processes=3,
        closed=[Closed(50, rps, 240.0, 300.0, 0, 0.02, 0.03)],
        overload=[Overload(level(load, goodput), worked=900, is_fresh=False) for load, goodput in goodputs.items()],
        kill=Kill(0.9, 7, {"503": 7}, 0.05, 0.5, 2, 1, 0.02),
        poison=Poison(32, 56, {"right": 32, "422": 24}, {"422": 8}),
    )


def recorded() -> Run:
    rows = [
        row("timebound", {1.0: 0.96, 1.5: 0.9}),
        row("mosec", {1.0: 0.32, 1.5: 0.05}, rps=195.0),
        row("fastapi", {1.0: 0.04, 1.5: 0.0}, rps=130.0),
        row("mosec-tuned", {1.0: 0.98, 1.5: 0.6}, rps=0.0),
    ]
    return Run("2 cores", "2026-01-01 00:00 UTC", 6.0, rows)


def test_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run = replace(recorded(), duels=[Duel("mosec", [190.0], [195.0], [200.0])])
    for each in run.rows:
        write_row(tmp_path, each)
    write_run(tmp_path, run)
    assert read_run(tmp_path) == run


def test_figures_hold_timebound_against_the_best_of_each_kind() -> None:
    flat = figures(recorded())
    assert flat["goodput_1.0_timebound"] == 0.96
    assert flat["goodput_1.0_best_peer_untuned"] == 0.32
    assert flat["ratio_1.0"] == pytest.approx(3.0)
    assert flat["goodput_1.5_best_peer_tuned"] == 0.6
    assert flat["ratio_tuned_1.5"] == pytest.approx(1.5)
    assert flat["closed_loop_over_fastest"] == pytest.approx(190 / 195, abs=1e-4)
    assert flat["worked_per_answer_1.0_fastapi"] == pytest.approx(22.5)


def test_duel_decides_about_the_closed_loop() -> None:
    run = replace(recorded(), duels=[Duel("mosec", [180.0, 198.0, 60.0], [200.0, 200.0, 50.0], [200.0] * 3)])
    assert figures(run)["closed_loop_over_fastest"] == pytest.approx(0.99)


def test_ratios_to_the_best_peer_are_told_with_its_name() -> None:
    run = recorded()
    run.rows[1] = row("mosec", {1.0: 0.8, 1.5: 0.05})
    text = table(run)
    assert "1.0x: 1.20 times the best untuned peer (mosec 0.800)" in text
    assert "1.5x: 18.00 times the best untuned peer (mosec 0.050)" in text


def test_goal_that_is_missed_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded()
    run.rows[1] = row("mosec", {1.0: 0.8, 1.5: 0.05})
    for each in run.rows:
        write_row(tmp_path, each)
    write_run(tmp_path, run)
    assert main(["--table", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "peers: ratio_1.0 is 1.2, not at least 1.7\n"


def test_peer_that_did_not_start_is_listed_with_the_reason() -> None:
    run = recorded()
    lost = row("ray", {})
    run.rows.append(
        replace(lost, first_answer_s=0.0, closed=[], kill=None, poison=None, failure="not installed: no disk")
    )
    text = table(run)
    assert "ray: not installed: no disk" in text
    assert figures(run)["peers_failed"] == 1


def test_run_in_which_the_machine_changed_its_pace_is_not_trusted() -> None:
    assert table(recorded()).endswith("quiet enough")
    run = recorded()
    run.rows[1].bare_rps = 150.0
    assert table(run).endswith("the bare loop's rate moved by up to 25%: too much to trust these figures")


def test_table_stands_under_its_heads() -> None:
    lines = table(recorded()).splitlines()
    head = next(line for line in lines if "c=50/s" in line)
    mosec = next(line for line in lines if line.startswith("  mosec "))
    assert len(head) == len(mosec)
    assert mosec[: head.index("c=50/s") + 6].endswith("195.0")
    assert mosec[: head.index("poison") + 6].endswith("32/56")


def test_table_command_shows_a_kept_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for each in recorded().rows:
        write_row(tmp_path, each)
    write_run(tmp_path, recorded())
    assert main(["--table", str(tmp_path), "--json", str(tmp_path / "flat.json")]) == 0
    assert "mosec 1.2.3" in capsys.readouterr().out
    assert json.loads((tmp_path / "flat.json").read_text())["peers_measured"] == 3


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (PLAIN, '{"uuid":"UUID","answer":5}'),
        (LISTED, '[{"uuid":"UUID","answer":5}]'),
        (V2, '{"outputs":[{"name":"answer","data":[5]},{"name":"id","data":["UUID"]}]}'),
    ],
)
def test_each_form_is_valid_json_and_its_answer_is_checked(form: Form, answer: str) -> None:
    exchange = PeerTraffic(form, 80, [Sample("cGljdHVyZQ==", [3, 4, 5])]).next()
    head, _, body = exchange.request.partition(b"\r\n\r\n")
    json.loads(body)
    assert f"Content-Length: {len(body)}".encode() in head
    uuid = body.decode().partition(form.before_uuid)[2][:12]
    assert exchange.is_right is not None
    assert exchange.is_right(Reply(200, [], answer.replace("UUID", uuid).encode()))
    assert not exchange.is_right(Reply(200, [], answer.replace("UUID", uuid).replace("5", "6").encode()))
    assert not exchange.is_right(Reply(200, [], answer.encode()))


def test_environment_that_lacks_a_program_of_the_system_is_not_made(tmp_path: Path) -> None:
    environment = Environment("mine", ("nothing==1",), programs=(("no-such-program", "some-package"),))
    with pytest.raises(NotInstalled, match="no-such-program is missing; install it with: apt-get install some-package"):
        provide(environment, tmp_path)


def test_environment_is_kept_while_it_holds_what_is_wanted(tmp_path: Path) -> None:
    environment = Environment("mine", ("nothing==1",))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/requirements.json").write_text(json.dumps(environment.requirements()))
    assert provide(environment, tmp_path) == tmp_path / "mine"


def test_version_is_read_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.11/site-packages/nvidia_pytriton-0.5.7.dist-info").mkdir(parents=True)
    assert installed_version(tmp_path, "nvidia-pytriton") == "0.5.7"
    assert installed_version(tmp_path, "ray") == ""


def test_few_answers_among_many_refusals_are_a_low_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("benchmarks.tools.load.time.perf_counter", lambda: now)
    window = Window(1.0)
    for millisecond in range(1000):
        now = 100.0 + WARM_UP_S + millisecond / 1000
        is_answer = 500 <= millisecond < 504
        attempt = Attempt(now, end=End.ANSWERED if is_answer else End.REFUSED, status=200 if is_answer else 429)
        attempt.quality = "full"
        window.complete(Question(now, attempts=[attempt]))
    load = window.load(0.0)
    assert load.errors == 996
    assert load.rps == pytest.approx(4.0, rel=0.01)

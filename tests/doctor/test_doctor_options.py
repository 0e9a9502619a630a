from __future__ import annotations

from pathlib import Path

from timebound.config import resolve, settings
from timebound.doctor.finding import Finding, State, as_lines, has_problems, ok, problem, warning
from timebound.doctor.options import check_options


def told(folder: Path, flags: dict[str, object] | None = None, environment: dict[str, str] | None = None) -> list[str]:
    """What is wrong with the settings, as texts."""
    where = (flags or {}, {"TIMEBOUND_PROFILES": "none", **(environment or {})}, folder)
    findings = list(check_options(resolve(*where), settings(*where), folder, cores=2))
    assert findings[0].state is State.OK
    return [f"{finding.state} {finding.text}" for finding in findings[1:]]


def test_plain_settings_are_well(tmp_path: Path) -> None:
    assert told(tmp_path, {"port": "9000", "deadline": "1s"}) == []


def test_a_value_that_another_beats_is_told_but_a_flag_is_meant_to_beat(tmp_path: Path) -> None:
    (tmp_path / "timebound.toml").write_text("port = 9000\nmax_queue = 7\n")
    (tmp_path / ".env").write_text("TIMEBOUND_PORT=9001\nTIMEBOUND_MAX_QUEUE=7\n")
    assert told(tmp_path) == ["warning port is set in .env, and to 9000 in timebound.toml, which does not count"]
    assert told(tmp_path, {"port": 80}) == []


def test_a_secret_is_not_shown_where_it_is_beaten(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TIMEBOUND_ADMIN_TOKEN=0123456789abcdef\n")
    (tmp_path / ".env").chmod(0o600)
    (line,) = told(tmp_path, environment={"TIMEBOUND_ADMIN_TOKEN": "fedcba9876543210"})
    assert "another value" in line
    assert "0123" not in line


def test_options_without_effect_are_told(tmp_path: Path) -> None:
    lines = told(tmp_path, {"store_lease": "3s", "reuse_port": True})
    assert any("store_lease is set and the store is memory" in line for line in lines)
    assert any("share no results" in line for line in lines)


def test_times_that_do_not_go_together_are_told(tmp_path: Path) -> None:
    lines = told(tmp_path, {"deadline": "50ms", "margin": "60ms", "store": "redis://h", "grace": "0"})
    assert [line.partition(" ")[0] for line in lines] == ["problem", "warning", "warning"]


def test_more_threads_than_cores_are_told(tmp_path: Path) -> None:
    assert told(tmp_path, {"workers": 2, "threads": 2}) == ["warning workers x slots x threads is 4 on 2 cores"]
    assert told(tmp_path, {"workers": 2}) == []


def test_what_strangers_could_use_is_told(tmp_path: Path) -> None:
    assert len(told(tmp_path, {"host": "0.0.0.0", "watch": True, "admin_token": "short"})) == 2
    assert told(tmp_path, {"watch": True, "admin_token": "short"}) == []


def test_a_password_that_everybody_can_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "timebound.toml"
    file.write_text('store = "redis://:pass@h"\n')
    file.chmod(0o644)
    (line,) = told(tmp_path)
    assert "every user can read it" in line
    file.chmod(0o640)
    assert told(tmp_path) == []


def test_findings_are_counted_and_only_problems_are_problems() -> None:
    findings: list[Finding] = [ok("a", "fine"), warning("long name", "meh", "do this")]
    assert not has_problems(findings)
    assert as_lines(findings) == ["ok       a          fine", "warning  long name  meh; do this", "1 warning, 1 ok"]
    assert has_problems([*findings, problem("c", "bad")])
    assert as_lines([problem("c", "bad")] * 2)[-1] == "2 problems"


def test_a_keys_file_that_the_server_would_refuse_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("[shop]\n[shop]\n")
    (line,) = told(tmp_path, {"keys": str(file)})
    assert line.startswith("problem the keys file")
    assert "one table" in line


def test_trust_in_everybody_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, {"trusted_proxies": "10.0.0.0/8,unix"}) == []
    (line,) = told(tmp_path, {"trusted_proxies": "0.0.0.0/0"})
    assert "may say to be anybody" in line

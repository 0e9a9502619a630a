"""The page that compares everyday use: whom it lists, what is counted, what a run writes; nothing is installed."""

from pathlib import Path

import pytest
from benchmarks.serving.comparison import PAGE, figures, main
from benchmarks.tools.compared import COMPARED
from benchmarks.tools.comparison_page import BEGIN, END, Findings, commands, counts, render, written

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"timebound", "litserve", "bentoml", "fastapi", "gradio", "ray"}


def test_the_tables_of_the_page_list_every_contestant() -> None:
    page = PAGE.read_text()
    heading = "| | " + " | ".join(each.title for each in COMPARED.values()) + " |"
    assert set(COMPARED) == NAMES
    assert page.count(heading) == 2
    for each in COMPARED.values():
        assert page.count(f"\n| {each.title} ") == (1 if each.environment is None else 2), each.title


def test_the_commands_and_lines_of_the_page_are_those_of_the_files() -> None:
    page = PAGE.read_text()
    assert counts() in page, "run benchmarks/serving/comparison.py, or put counts() there"
    assert commands() in page, "run benchmarks/serving/comparison.py, or put commands() there"


def test_the_page_names_the_versions_that_its_peers_are_installed_at() -> None:
    page = PAGE.read_text()
    for each in COMPARED.values():
        if each.environment is not None:
            (pinned,) = [word for word in each.environment.packages if word.startswith(each.package)]
            assert f"\n| {each.title} {pinned.partition('==')[2]} |" in page


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("app", ["hello", "network"])
def test_the_files_whose_lines_are_counted_are_there_and_say_where_the_port_goes(
    name: str, app: str, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.touch()
    each = COMPARED[name]
    assert each.lines(app) > 1
    each.lay_out(app, tmp_path, weights, 12345)
    ran = (tmp_path / f"{app}.py").read_text() + " ".join(each.command(app, tmp_path, 12345))
    assert "12345" in ran
    assert "8000" not in ran


def test_lines_without_code_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.tools.compared.APPS", tmp_path)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/hello.py").write_text("# a remark\n\nimport ray\n\n\nray.init()  # counted\n")
    assert COMPARED["ray"].lines("hello") == 2


def test_a_run_writes_between_the_marks_only() -> None:
    page = f"# Page\n\n{BEGIN}\n\nold\n\n{END}\n\nThe rest.\n"
    assert written(page, "new") == f"# Page\n\n{BEGIN}\n\nnew\n\n{END}\n\nThe rest.\n"
    with pytest.raises(ValueError, match="the page has no marks"):
        written("# Page\n", "new")


def test_figures_are_medians_and_timebound_beside_the_fastest_model_server() -> None:
    seconds = {("timebound", "hello"): [0.9, 0.7, 5.0], ("litserve", "hello"): [3.6], ("ray", "hello"): [1.8]}
    versions = dict.fromkeys(("timebound", "litserve", "ray"), "1")
    found = figures(Findings(versions, {**seconds, ("fastapi", "hello"): [0.1]}))
    assert found["hello_s_timebound"] == 0.9
    assert found["hello_over_model_servers"] == 0.5
    assert "network_over_model_servers" not in found


def test_one_that_did_not_answer_has_no_figures_and_its_reason_below_the_table() -> None:
    findings = Findings({"ray": "1"}, {("ray", "hello"): [1.0]}, {"ray": "it ended\nwith exit code 1"})
    found = figures(findings)
    told = render(findings, found, "Measured here.")
    assert found["unanswered"] == 1
    assert "hello_s_ray" not in found
    assert "- Ray Serve: it ended with exit code 1" in told


def test_a_peer_that_cannot_be_installed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    before, log = PAGE.read_text(), tmp_path / "install.log"
    asked = ["--only", "litserve", "--quick", "--envs", str(tmp_path / "envs"), "--log", str(log)]
    assert main(asked) == 0
    assert "- LitServe: not installed: " in capsys.readouterr().out
    assert "litserve: not installed: " in log.read_text()
    assert PAGE.read_text() == before

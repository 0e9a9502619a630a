"""`timebound results`: what a server or a Redis keeps, for people and for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.live.serving import MODELS, Serving, eventually
from tests.redis_server import RedisServer, free_port

from timebound.cli import main

pytestmark = pytest.mark.live

TOKEN = "only-for-the-operator"


Results = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    """How the command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def results(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Results:
    """The command, run in this process."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIMEBOUND_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        try:
            code = main(["results", *arguments])
        except SystemExit as left:
            code = int(left.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def shown(results: Results) -> Callable[..., str]:
    """What the command prints when all is well."""

    def show(*arguments: str) -> str:
        done = results(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return show


@pytest.fixture(scope="module")
def serving(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    computed = {"COMPUTED": str(tmp_path_factory.mktemp("results") / "computed"), "TIMEBOUND_ADMIN_TOKEN": TOKEN}
    store = ("--store", redis.url, "--store-namespace", "command", "--workers", "1")
    with Serving(MODELS / "counts.py", *store, environment=computed) as serving:
        yield serving


@pytest.fixture(params=["server", "redis"])
def place(request: pytest.FixtureRequest, serving: Serving, redis: RedisServer) -> list[str]:
    """The flags that say where to look; three results are there."""
    keys = ("a key", "ünï/✓", "bell\x07")
    for key in keys:
        assert serving.http.post("/count", json={"value": 7, "id": key}).status_code == 200
    eventually(lambda: len(redis.ask("KEYS", "command:r:counts:*")) == len(keys), "all results written")
    if request.param == "server":
        return ["--url", serving.url, "--admin-token", TOKEN]
    return ["--store", redis.url, "--store-namespace", "command"]


def test_a_list_for_people_and_for_programs(shown: Callable[..., str], place: list[str]) -> None:
    head, *lines = shown("ls", *place).splitlines()
    assert head.split() == ["model", "key", "quality", "bytes", "finished", "expires", "in"]
    assert len(lines) == 3
    assert "\x07" not in "".join(lines)
    assert any("counts  ünï/✓" in line and "full" in line for line in lines)
    listed: dict[str, Any] = json.loads(shown("ls", "counts", "--json", *place))
    assert listed["is_complete"] is True
    assert {entry["key"] for entry in listed["results"]} == {"a key", "ünï/✓", "bell\x07"}
    assert 0 < listed["results"][0]["expires_in_s"] <= 300
    assert json.loads(shown("ls", "contents", "--json", *place))["results"] == []


@pytest.mark.parametrize("key", ["a key", "ünï/✓"])
def test_one_result_for_people_and_for_programs(shown: Callable[..., str], place: list[str], key: str) -> None:
    text = shown("get", "counts", key, *place)
    assert '{"value":7' in text
    assert key in text
    found = json.loads(shown("get", "counts", key, "--json", *place))
    assert (found["body"]["value"], found["quality"], found["members"]) == (7, "full", "1/1")


def test_no_such_result_is_exit_code_1_and_a_sentence(results: Results, place: list[str]) -> None:
    for action in (["get", "counts", "nobody"], ["clear", "counts", "nobody"]):
        done = results(*action, *place)
        assert (done.returncode, done.stdout) == (1, "")
        if action[0] == "get" or "--store" in place:
            assert "no result of 'counts' is kept under" in done.stderr
        assert "Traceback" not in done.stderr


def test_clearing_one_a_model_and_all(results: Results, shown: Callable[..., str], place: list[str]) -> None:
    assert shown("clear", "counts", "a key", *place) == "cleared 1\n"
    for all_of_it in (["clear"], ["clear", "counts"]):
        refused = results(*all_of_it, *place)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "add --yes" in refused.stderr
    assert results("clear", "", "--yes", *place).returncode == 2
    assert shown("clear", "contents", "--yes", *place) == "cleared 0\n"
    assert json.loads(shown("clear", "counts", "--yes", "--json", *place)) == {"cleared": 2}
    assert shown("clear", "--yes", *place) == "cleared 0\n"


def test_the_token_may_come_from_the_environment_and_is_asked_for(
    results: Results, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = results("ls", "--url", serving.url)
    assert refused.returncode == 1
    assert "admin token" in refused.stderr
    monkeypatch.setenv("TIMEBOUND_ADMIN_TOKEN", TOKEN)
    assert results("ls", "--url", serving.url).returncode == 0


def test_nobody_there_is_exit_code_1_and_a_sentence(results: Results) -> None:
    port = str(free_port())
    for place in (["--url", f"http://127.0.0.1:{port}"], ["--store", f"redis://127.0.0.1:{port}"]):
        done = results("ls", *place)
        assert (done.returncode, done.stdout) == (1, "")
        assert "refused" in done.stderr.lower()
        assert len(done.stderr.splitlines()) == 1


def test_a_place_that_cannot_be_is_exit_code_2_and_a_sentence(results: Results, redis: RedisServer) -> None:
    wrong = [
        ["--url", "nonsense"],
        ["--url", "http://host:port"],
        ["--store", "memory"],
        ["--store", redis.url, "--url", "http://127.0.0.1:1"],
        ["--store", redis.url, "--store-namespace", "a*b"],
    ]
    for place in wrong:
        done = results("ls", *place)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("timebound: ")
        assert len(done.stderr.splitlines()) == 1


def test_an_api_key_means_nothing_to_redis_and_is_refused_there(results: Results, redis: RedisServer) -> None:
    done = results("get", "digits", "k1", "--api-key", "tb_secret", "--store", redis.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--api-key is shown to a server" in done.stderr
    assert "tb_secret" not in done.stderr


@pytest.mark.parametrize("flag", ["--api-key", "--admin-token"])
def test_a_secret_with_a_line_break_is_told_of_and_not_shown(results: Results, flag: str) -> None:
    done = results("get", "digits", "k1", flag, "tb_secret\n")
    assert done.returncode == 2
    assert "line break" in done.stderr
    assert "tb_secret" not in done.stderr


def test_what_answers_but_is_no_timebound_server_is_told_so(results: Results, redis: RedisServer) -> None:
    done = results("ls", "--url", f"http://127.0.0.1:{redis.port}")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_help_has_examples_and_a_missing_action_shows_it(results: Results, shown: Callable[..., str]) -> None:
    assert "timebound results get digits order-17" in shown("--help")
    lost = results()
    assert lost.returncode == 2
    assert "timebound results clear" in lost.stdout

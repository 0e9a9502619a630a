"""The example in examples/sentiment: its shipped model answers, its results stay in Redis and become pictures."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.serving import Serving, eventually

pytestmark = pytest.mark.live

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "sentiment"
SIXTY_DAYS_S = 60 * 86400


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """A Redis of its own, on a Unix socket, that keeps nothing on disk."""
    program = shutil.which("redis-server")
    assert program, "redis-server is not installed; scripts/test installs it"
    path = tmp_path / "redis.sock"
    flags = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([program, *flags], stdout=subprocess.DEVNULL)
    try:
        eventually(path.exists, "Redis listens")
        yield f"unix://{path}"
    finally:
        process.kill()
        process.wait()


def test_shipped_model_tells_good_from_bad_from_plain() -> None:
    with Serving(EXAMPLE) as server:
        posts = {
            "positive": "Best day of the year, I love this city so much 😍",
            "negative": "Worst service ever, I want my money back 😡",
            "neutral": "The train to the airport leaves at 9:15 from platform 2",
        }
        for feeling, text in posts.items():
            answer = server.http.post("/predictions/sentiment", json={"text": text}).json()
            assert answer["feeling"] == feeling
            assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=0.001)


def test_post_without_words_is_refused_alone() -> None:
    with Serving(EXAMPLE) as server:
        refused = server.http.post("/predictions/sentiment", json={"text": " \n "})
        assert refused.status_code == 422
        assert "text has no word" in refused.json()["detail"]
        assert server.http.post("/predictions/sentiment", json={"text": "fine"}).status_code == 200


def test_time_that_is_none_is_refused_by_name() -> None:
    with Serving(EXAMPLE) as server:
        for wrong in ("yesterday", "0001-01-01T00:00+02:00", "9999-12-31T23:59-05:00"):
            refused = server.http.post("/predictions/sentiment", json={"text": "fine", "time": wrong})
            assert (refused.status_code, refused.json()["field"]) == (422, "time")
        for time in (
            "0001-01-01T00:00",
            "2026-03-02",
            "2026-03-02T08:15",
            "2026-03-02T08:15:00+02:00",
            "2026-03-02T08:15Z",
            None,
        ):
            assert server.http.post("/predictions/sentiment", json={"text": "fine", "time": time}).status_code == 200


def test_result_is_kept_sixty_days_and_read_back_by_another_server(redis: str) -> None:
    post = {"id": "tram/1", "user": "mira", "time": "2026-03-02T08:15", "text": "I love the #NightTram"}
    with Serving(EXAMPLE, "--store", redis) as server:
        computed = server.http.post("/predictions/sentiment", json=post)
        assert computed.headers["timebound-source"] == "computed"
        eventually(lambda: _seconds_left(redis, "tram/1") > 0, "the result in Redis")
        assert SIXTY_DAYS_S - 60 < _seconds_left(redis, "tram/1") <= SIXTY_DAYS_S
    with Serving(EXAMPLE, "--store", redis) as other:
        again = other.http.post("/predictions/sentiment", json=post)
        assert again.headers["timebound-source"] == "stored"
        assert again.content == computed.content
        assert other.http.get("/v1/results/sentiment/tram/1").content == computed.content
    assert computed.json()["topics"] == ["nighttram"]
    assert "text" not in computed.json()


def test_fed_posts_are_counted_from_the_store(redis: str) -> None:
    with Serving(EXAMPLE, "--store", redis) as server:
        fed = _python("feed.py", "--url", server.url, "--connections", "1")
        assert "24  200 full computed" in fed
        eventually(lambda: _seconds_left(redis, "sample-24") > 0, "the last result in Redis")
    count = f"""
import report
answers = report.read({redis!r}, "timebound")
print(len(answers), report.active_users(answers, 1), report.over_time(answers, "Night Tram", report.DAY))
"""
    counted = _python("-c", count)
    assert counted.startswith("24 results are kept\n24 [('mira', [")
    assert counted.count("datetime.datetime(2026, 3") == 4


def test_answers_that_are_none_are_left_out_and_counted(redis: str) -> None:
    with Serving(EXAMPLE, "--store", redis) as server:
        server.http.post("/predictions/sentiment", json={"id": "good", "text": "I love it"})
        eventually(lambda: _seconds_left(redis, "good") > 0, "the result in Redis")
    value = _ask(redis, b"GET timebound:r:sentiment:good\r\n").partition(b"\r\n")[2][:-2]
    for key, wrong in {
        "no user": value.replace(b'"user"', b'"urse"'),
        "no JSON": value.replace(b'{"feeling"', b'["feeling"'),
        "no layout": b"\0",
    }.items():
        name = f"timebound:r:sentiment:{key}".encode()
        assert value != wrong
        command = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(name), name, len(wrong), wrong)
        assert _ask(redis, command) == b"+OK\r\n"
    counted = _python("-c", f"import report; report.read({redis!r}, 'timebound')")
    assert counted.splitlines() == [
        "1 results are kept",
        "results that cannot be read as answers of this model are left out: 3",
    ]


def _python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=EXAMPLE, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _seconds_left(redis: str, key: str) -> int:
    """How long Redis will keep a result; negative if it has none."""
    return int(_ask(redis, f"TTL timebound:r:sentiment:{key}\r\n".encode()).strip().lstrip(b":"))


def _ask(redis: str, command: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(redis.removeprefix("unix://"))
        connection.sendall(command)
        return connection.recv(4096)


def test_posts_are_read_where_they_lie() -> None:
    command = [sys.executable, str(EXAMPLE / "pages.py"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pages:
        try:
            assert pages.stdout is not None
            first = pages.stdout.readline().split()[-1]
            with Serving(EXAMPLE / "by_url.py") as server:
                answer = server.http.get("/inference", params={"url": first}, headers={"Timebound-Timeout-Ms": "10000"})
                assert (answer.json()["feeling"], answer.headers["timebound-quality"]) == ("positive", "full")
                missing = server.http.post("/inference", json={"url": first + "-no"})
                assert (missing.status_code, missing.json()["field"]) == (422, "url")
                elsewhere = server.http.post("/inference", json={"url": "http://10.0.0.1/secret"})
                assert "only pages of 127.0.0.1" in elsewhere.json()["detail"]
        finally:
            pages.kill()

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
answers = list(report.kept_answers(report.Redis({redis!r}), "timebound"))
print(len(answers), report.active_users(answers, 1), report.over_time(answers, "Night Tram", report.DAY))
"""
    counted = _python("-c", count)
    assert counted.startswith("24 [('mira', [")
    assert counted.count("datetime.datetime(2026, 3") == 4


def _python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=EXAMPLE, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _seconds_left(redis: str, key: str) -> int:
    """How long Redis will keep a result; negative if it has none."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(redis.removeprefix("unix://"))
        connection.sendall(f"TTL timebound:r:sentiment:{key}\r\n".encode())
        return int(connection.recv(100).strip().lstrip(b":"))

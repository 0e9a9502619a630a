"""New code under load: loaded and warmed up beside the old one, then switched to; no request is lost."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.live.serving import MODELS, Serving, clean_environment, eventually

pytestmark = pytest.mark.live

APP = """
import time
import timebound as tb

class Word(tb.Model):
    deadline = 5.0
    class Request(tb.Struct):
        n: int
    def load(self):
        {load}
    def infer(self, batch):
        time.sleep(0.005)  # batches are under way whenever a reload comes
        return ["{word}"] * len(batch)
    def finish(self, output, request):
        return {{"n": request.n, "word": output}}
    def fallback(self, request):
        return {{"n": request.n, "word": "fallback {word}"}}
"""


def write(file: Path, word: str, load: str = "pass") -> None:
    file.write_text(APP.format(word=word, load=load))


class Asking:
    """Clients that ask all the time; what they were told."""

    def __init__(self, serving: Serving, clients: int = 4) -> None:
        self._serving = serving
        self._is_over = threading.Event()
        self.answers: list[tuple[int, Any]] = []
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            answer = self._serving.http.post("/predictions/word", json={"n": number})
            self.answers.append((answer.status_code, answer.json().get("word")))

    def words(self) -> list[Any]:
        return [word for _, word in self.answers]


def test_every_request_is_answered_through_reloads_of_new_code(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    write(file, "one")
    with Serving(file) as serving, Asking(serving) as asking:
        eventually(lambda: "one" in asking.words(), "an answer of the first code")
        pids = {worker["pid"] for worker in serving.workers()}
        for word in ("two", "three"):
            write(file, word)
            answer = serving.operator.post("/v1/reload")
            assert answer.json() == {"models": ["word"]}
            eventually(lambda: word in asking.words(), f"an answer of {word}")  # noqa: B023
            after = len(asking.answers)
            eventually(lambda: len(asking.answers) > after + 20, "more answers")  # noqa: B023
            assert set(asking.words()[after + 8 :]) == {word}, "the old code answers no more"
        eventually(lambda: not pids & {worker["pid"] for worker in serving.workers()}, "the old workers leave")
    assert {status for status, _ in asking.answers} == {200}
    assert set(asking.words()) == {"one", "two", "three"}


def test_code_that_cannot_be_loaded_never_takes_a_request(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    write(file, "one")
    with Serving(file) as serving, Asking(serving) as asking:
        eventually(lambda: asking.answers, "an answer")
        write(file, "two", load='raise ValueError("no weights")')
        answer = serving.operator.post("/v1/reload")
        assert (answer.status_code, answer.json()["code"]) == (409, "reload_failed")
        assert "no weights" in answer.json()["detail"]
        assert "no weights" in serving.wait_for_line("not changed")["message"]
        write(file, "three")
        serving.process.send_signal(signal.SIGHUP)
        eventually(lambda: "three" in asking.words(), "an answer of the code that can be loaded")
    assert {status for status, _ in asking.answers} == {200}
    assert set(asking.words()) == {"one", "three"}


def test_a_model_that_is_gone_after_a_reload_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    write(file, "one")
    with Serving(file) as serving:
        assert serving.http.post("/predictions/word", json={"n": 1}).status_code == 200
        file.write_text(file.read_text().replace("class Word", "class Phrase"))
        assert serving.operator.post("/v1/reload").json() == {"models": ["phrase"]}
        assert serving.http.post("/predictions/word", json={"n": 1}).json()["code"] == "unknown_model"
        assert serving.http.post("/predictions/phrase", json={"n": 1}).status_code == 200


def test_a_reload_is_the_operators(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    write(file, "one")
    with Serving(file) as serving:
        answer = serving.http.post("/v1/reload", headers={"X-Forwarded-For": "10.1.2.3"})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_path_that_is_taken_is_told_at_the_start_and_refused_by_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    write(file, "one")
    sound = file.read_text()
    other = sound[sound.index("class Word") :].replace("class Word", "class Phrase")
    doubled = sound + "\n" + other.replace("(tb.Model):", "(tb.Model):\n    path = '/predictions/word'", 1)
    taken = sound.replace("(tb.Model):", "(tb.Model):\n    path = '/ui/app.js'", 1)
    troubles = {doubled: "would both answer at '/predictions/word'", taken: "'/ui/app.js' is one of the server's own"}
    with Serving(file) as serving:
        for code, why in troubles.items():
            file.write_text(code)
            answer = serving.operator.post("/v1/reload")
            assert (answer.status_code, answer.json()["code"]) == (409, "reload_failed")
            assert why in answer.json()["detail"]
            assert serving.http.post("/predictions/word", json={"n": 1}).json()["word"] == "one"
            assert "javascript" in serving.http.get("/ui/app.js").headers["content-type"]
    for code, why in troubles.items():
        file.write_text(code)
        command = [sys.executable, "-m", "timebound.cli", "serve", str(file), "--port", "0"]
        environment = clean_environment()
        started = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)
        assert (started.returncode, started.stderr.count("\n")) == (2, 1)
        assert why in started.stderr


def test_a_reload_of_all_tells_what_each_server_said(tmp_path: Path) -> None:
    app, broken = tmp_path / "app.py", tmp_path / "broken.py"
    for file in (app, broken):
        file.write_text((MODELS / "echo.py").read_text())
    token = ("--workers", "1", "--admin-token", "s3cret")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    with Serving(app, *token) as first, Serving(broken, *token) as second:
        broken.write_text("raise ValueError('no weights')")
        addresses = ",".join(f"127.0.0.1:{port}" for port in (second.port, nobody, first.port))
        command = [sys.executable, "-m", "timebound", "reload", "--all", addresses, "--admin-token", "s3cret"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 1
    assert "no weights" in lines[0]
    assert "Connection refused" in lines[1]
    assert lines[2:] == [f"http://127.0.0.1:{first.port}: serving echo", "1 of 3 reloaded"]


def test_of_several_targets_each_is_watched(tmp_path: Path) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    code = "def {name}(x: int = 0) -> str:\n    return '{word}'\n"
    first.write_text(code.format(name="one", word="a"))
    second.write_text(code.format(name="two", word="a"))

    with Serving(first, second, "--watch", "--workers", "1") as serving:

        def told() -> list[str]:
            return [serving.http.post(f"/predictions/{name}", json={}).json() for name in ("one", "two")]

        assert told() == ["a", "a"]
        second.write_text(code.format(name="two", word="b"))
        eventually(lambda: told() == ["a", "b"], "the second file is loaded anew")
        first.write_text(code.format(name="one", word="c"))
        serving.operator.post("/v1/reload")
        assert told() == ["c", "b"]


def test_a_link_that_was_turned_to_another_folder_is_followed(tmp_path: Path) -> None:
    # Given: a release that reads a file by a relative name, served from its folder, which a link leads to
    for word in ("old", "new"):
        (tmp_path / word).mkdir()
        (tmp_path / word / "label").write_text(word)
        code = APP.format(word=word, load="self.label = open('label').read()")
        (tmp_path / word / "app.py").write_text(code.replace(f'["{word}"]', f'[self.label + " {word}"]'))
    current = tmp_path / "current"
    current.symlink_to("old")
    with Serving("app.py", folder=current, environment={"PWD": str(current)}) as serving:

        def said() -> str:
            return str(serving.http.post("/predictions/word", json={"n": 1}).json()["word"])

        assert said() == "old old"
        # When: the link is turned to the next one, and the first is gone
        (tmp_path / "next").symlink_to("new")
        (tmp_path / "next").replace(current)
        shutil.rmtree(tmp_path / "old")
        serving.signal(signal.SIGHUP)
        # Then: code and files are of the new one
        eventually(lambda: said() == "new new", "the new release")

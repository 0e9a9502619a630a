"""A server from a script or a test: `tb.serve` and `tb.start`, with real processes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from tests.live.serving import eventually

import timebound as tb
from timebound.errors import SetupError

pytestmark = pytest.mark.live


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive its test."""
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def test_a_function_is_served_beside_the_program_and_stops_with_it(tmp_path: Path) -> None:
    app = tmp_path / "hello.py"
    app.write_text("def greet(name: str, times: int = 1) -> dict:\n    return {'hello': [name] * times}\n")
    with tb.start(f"{app}:greet", workers=1) as server:
        assert server.ask({"name": "you"}).value == {"hello": ["you"]}
        with pytest.raises(tb.RequestError, match="name"):
            server.ask({"times": 2})
        host, port = server.url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_a_server_outlives_the_thread_that_started_it_and_not_the_program(tmp_path: Path) -> None:
    app = tmp_path / "hello.py"
    app.write_text("def greet(name: str) -> str:\n    return name\n")
    program = dedent(f"""
        import threading
        import timebound as tb

        started = []
        thread = threading.Thread(target=lambda: started.append(tb.start({f"{app}:greet"!r}, workers=1)))
        thread.start()
        thread.join()
        (server,) = started
        print(server.url, server.ask({{"name": "first"}}).value, flush=True)
        input()
        print(server.ask({{"name": "second"}}).value, flush=True)
        input()
    """)
    command = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ended(subprocess.Popen(command, text=True, **pipes)) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        assert process.stdin is not None
        url, said = process.stdout.readline().split()
        process.stdin.write("\n")
        process.stdin.flush()
        assert (said, process.stdout.readline()) == ("first", "second\n")
        process.kill()
        host, port = url.removeprefix("http://").split(":")
        eventually(lambda: not is_listening(host, int(port)), "the server gone")


def is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_script_serves_its_own_class_until_it_is_told_to_stop(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        dedent("""
            import timebound as tb

            class Twice(tb.Model):
                class Request(tb.Struct):
                    x: int

                def infer(self, batch):
                    return [2 * request.x for request in batch]

            if __name__ == "__main__":
                raise SystemExit(tb.serve(Twice, port=0, workers=1))
        """)
    )
    with ended(subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)) as process:
        assert process.stderr is not None
        at = json.loads(process.stderr.readline())["at"]
        with tb.Client(at.removesuffix("/predictions/twice")) as client:
            assert client.ask("twice", {"x": 4}).value == 8
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        process.wait()
    assert process.returncode == 0


def test_settings_of_the_app_keep_their_types_and_stand_in_no_command_line(tmp_path: Path) -> None:
    app = tmp_path / "shop.py"
    app.write_text(
        dedent("""
            import os
            import timebound as tb

            class Shop(tb.Model):
                example = b"x"

                class Settings(tb.Struct):
                    token: str
                    labels: list[str]
                    limits: dict[str, float]
                    place: str | None = "here"

                def infer(self, batch):
                    own = self.settings
                    is_told = any(own.token in value for value in os.environ.values())
                    return [[own.token, own.labels, own.limits, own.place, is_told] for _ in batch]
        """)
    )
    own: dict[str, Any] = {"token": "told-to-nobody-4711", "labels": ["a", "b"], "limits": {"a": 0.5}, "place": None}
    with tb.start(app, workers=1, app=own) as server:
        assert server.ask(b"x").value == [*own.values(), False]
        assert not any(own["token"] in words for words in command_lines())


def command_lines() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield file.read_text(errors="replace")


def test_what_workers_could_not_import_is_told_before_anything_starts() -> None:
    class Inside(tb.Model):
        def infer(self, batch: list[bytes]) -> list[bytes]:
            return batch

    with pytest.raises(SetupError, match="move it to the top level of test_program"):
        tb.start(Inside)
    with pytest.raises(SetupError, match="%%writefile"):
        tb.start(eval("lambda text: text"))
    with pytest.raises(SetupError, match="'prot' is no option"):
        tb.start("app.py", prot=8000)


def test_a_script_without_the_guard_is_told_and_starts_no_server_in_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "noguard.py"
    script.write_text("import timebound as tb\n\ndef add(a: int, b: int) -> int:\n    return a + b\n\ntb.start(add)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert 'put that call under if __name__ == "__main__":' in done.stderr


TYPED = """
import math
from typing import Annotated
import timebound as tb
from beside import WORDS
FACTOR = 3

def stretched(value):
    return math.floor(value * FACTOR)

class Part(tb.Struct):
    size: Annotated[int, tb.Meta(ge=1)]

class Mood(tb.Model):
    key = "id"
    class Settings(tb.Struct):
        top: int = 7
    class Request(tb.Struct, kw_only=True):
        id: str
        value: float = 2.5
        words: list[str] = []
        parts: list[Part] = []
        def longest(self):
            return max(self.words, default="")
    def load(self):
        with open(__import__("pathlib").Path("weights.txt").resolve()) as file:
            self.weight = int(file.read())
    def infer(self, batch):
        return [[stretched(one.value), one.longest(), [part.size for part in one.parts], self.weight] for one in batch]
    def finish(self, output, request):
        return [request.id, *output, self.settings.top, WORDS]

def greet(name: str, times: int = FACTOR) -> list[str]:
    return [name] * times

FACTOR = 4
with tb.start(Mood, workers=1) as server:
    print("SAID", server.ask({"id": "a", "words": ["b", "ccc"], "parts": [{"size": 2}]}).value)
    try:
        server.ask({"id": "a", "parts": [{"size": 0}]})
    except tb.RequestError as error:
        print("SAID", error.field)

with tb.start(greet, workers=1) as server:
    print("SAID", server.ask({"name": "you"}).value)

print("SAID", tb.testing.ask(greet, {"name": "me"}))
LOCK = __import__("threading").Lock()
def locked(name: str) -> str:
    return f"{name} {LOCK}"

try:
    tb.start(locked)
except Exception as error:
    print("SAID", error)

"""


def typed(text: str, folder: Path) -> list[str]:
    """What Python prints that is told this line by line, as at its prompt."""
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=text, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return [line.partition("SAID ")[2] for line in done.stdout.splitlines() if "SAID " in line]


def test_what_is_typed_at_the_prompt_is_served_as_it_is_then(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORDS = 'of a module'\n")
    (tmp_path / "weights.txt").write_text("11")
    mood, field, greet, tested, locked = typed(TYPED, tmp_path)
    assert mood == "['a', 10, 'ccc', [2], 11, 7, 'of a module']"
    assert field == "parts[0].size"
    assert greet == "['you', 'you', 'you']"
    assert tested == "['me', 'me', 'me']"
    assert locked.startswith("locked uses something that cannot be handed to workers: cannot pickle '_thread.lock'")
    assert sorted(file.name for file in tmp_path.iterdir() if file.suffix) == ["beside.py", "weights.txt"], (
        "no file stays"
    )

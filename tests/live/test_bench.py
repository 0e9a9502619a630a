"""`timebound bench` on real servers: good ones, slow ones, and some that keep to no rule."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.live.rogue import Act, Guest, Rogue, after, ok
from tests.live.serving import MODELS, PATIENCE_S, Serving, clean_environment

pytestmark = pytest.mark.live

BODY = ("--body", '{"n": {i}}')


class Ran:
    """What a bench left behind."""

    def __init__(self, done: subprocess.CompletedProcess[str], file: Path) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.levels: list[dict[str, Any]] = json.loads(file.read_text())["levels"] if file.exists() else []

    @property
    def figures(self) -> dict[str, float]:
        assert self.levels, self.err
        figures: dict[str, float] = self.levels[0]["figures"]
        return figures


def bench(folder: Path, *flags: str | Path) -> Ran:
    file = folder / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", "timebound.cli", "bench", *map(str, flags), "--json", str(file)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(done, file)


# ---------------------------------------------------------------------- servers that keep to no rule


def resets_every_third(guest: Guest, number: int) -> bool:
    return guest.reset() if number % 3 == 0 else guest.say(ok())


def closes_after_each(guest: Guest, number: int) -> bool:
    guest.say(ok())
    return False


def announces_its_closing(guest: Guest, number: int) -> bool:
    guest.say(ok(b"{}", "Connection: close"))
    return False


def in_small_pieces(guest: Guest, number: int) -> bool:
    for byte in ok(b'{"a":1}'):
        guest.say(bytes([byte]))
    return True


def chunked(guest: Guest, number: int) -> bool:
    guest.say(b"HTTP/1.1 100 Continue\r\n\r\n")
    return guest.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n")


def until_it_closes(guest: Guest, number: int) -> bool:
    guest.say(b"HTTP/1.1 200 OK\r\n\r\n{}")
    return False


def garbage(guest: Guest, number: int) -> bool:
    return guest.say(b"220 mail.example.org ESMTP\r\n")


def answers_twice(guest: Guest, number: int) -> bool:
    return guest.say(ok() + ok())


def half_an_answer(guest: Guest, number: int) -> bool:
    guest.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    return False


@pytest.mark.parametrize("act", [closes_after_each, announces_its_closing, in_small_pieces, chunked, until_it_closes])
def test_every_lawful_way_to_answer_is_understood(tmp_path: Path, act: Act) -> None:
    with Rogue(act) as rogue:
        ran = bench(
            tmp_path, rogue.url, "--clients", "4", "--requests", "60", *BODY, "--expect", _written(tmp_path, act)
        )
    assert ran.code == 0, ran.err
    assert ran.figures["requests"] == 60
    # A farewell that crosses the next request on its way loses it, and is said to; the others lose nothing.
    lost = ran.figures["lost"]
    assert ran.figures["goodput"] == pytest.approx(1 - lost / 60)
    assert lost == 0 or act is closes_after_each
    assert ran.figures["wrong"] == 0


def _written(folder: Path, act: Act) -> Path:
    file = folder / "right.json"
    file.write_text('[{"a": 1}]' if act is in_small_pieces else "[{}]")
    return file


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (garbage, "answer is not HTTP"),
        (answers_twice, "answer is not HTTP"),
        (half_an_answer, "closed before the answer"),
        (lambda guest, number: False, "closed before the answer"),
        (lambda guest, number: guest.reset(), "connection reset"),
    ],
)
def test_a_server_that_breaks_the_rules_costs_its_answers_and_nothing_else(tmp_path: Path, act: Act, why: str) -> None:
    with Rogue(act) as rogue:
        ran = bench(tmp_path, rogue.url, "--clients", "2", "--requests", "20", *BODY)
    assert ran.figures["lost"] == 20
    assert ran.levels[0]["losses"] == {why: 20}
    assert ran.code == 1
    assert why in ran.out


def test_resets_are_counted_and_the_others_are_served(tmp_path: Path) -> None:
    with Rogue(resets_every_third) as rogue:
        ran = bench(tmp_path, rogue.url, "--clients", "3", "--requests", "90", *BODY)
    assert ran.code == 0
    assert ran.figures["lost"] == 30
    assert ran.figures["goodput"] == pytest.approx(2 / 3)


def test_a_connection_that_went_stale_while_idle_is_nobodys_loss(tmp_path: Path) -> None:
    opened = time.monotonic()

    def closes_when_asked_after_a_pause(guest: Guest, number: int) -> bool:
        # The second request comes on a connection that idled; the server has just decided to close it.
        return guest.say(ok()) if number != 2 or time.monotonic() - opened < 1 else False

    with Rogue(closes_when_asked_after_a_pause) as rogue:
        ran = bench(tmp_path, rogue.url, "--users", "1", "--think", "1.2-1.2", "--requests", "3", *BODY)
    assert ran.figures["stale_connections"] == 1
    assert ran.figures["failed"] == 0
    assert ran.figures["goodput"] == 1


def test_a_silent_server_is_given_up_and_asked_again_with_the_same_key(tmp_path: Path) -> None:
    asked: dict[bytes, int] = {}
    lock = threading.Lock()

    def silent_twice(guest: Guest, number: int) -> bool:
        with lock:
            body = rogue.bodies[number - 1]
            asked[body] = asked.get(body, 0) + 1
            is_third = asked[body] == 3
        return guest.say(ok()) if is_third else True

    flags = ("--scenario", "contest-10x10", "--timeout", "300ms", "--deadline", "9s", "--body", '{"id": "{uuid}"}')
    with Rogue(silent_twice) as rogue:
        ran = bench(tmp_path, rogue.url, *flags)
    assert (ran.figures["requests"], ran.figures["resends"]) == (100, 200)
    assert set(asked.values()) == {3}
    assert ran.figures["goodput"] == 1
    assert 599 < ran.figures["p50_ms"] < 900


def test_requests_that_wait_for_a_connection_count_from_their_own_time(tmp_path: Path) -> None:
    flags = ("--rate", "50", "--arrivals", "constant", "--duration", "1s", "--connections", "2")
    with Rogue(after(0.1, ok())) as rogue:
        ran = bench(tmp_path, rogue.url, *flags, *BODY)
    # Two connections take 20 of 50 requests a second, so the last ones wait for one and a half.
    assert ran.figures["connections"] == 2
    assert ran.figures["max_ms"] > 1000
    assert "waited in the client because all its connections were busy" in ran.err


def test_who_never_answers_times_out_every_request(tmp_path: Path) -> None:
    with Rogue(lambda guest, number: True) as rogue:
        ran = bench(tmp_path, rogue.url, "--clients", "5", "--requests", "10", "--timeout", "200ms", *BODY)
    assert ran.figures["timed_out"] == 10
    assert ran.code == 1


def test_a_stall_is_in_the_open_loops_percentiles_and_hidden_from_a_closed_loop(tmp_path: Path) -> None:
    lock = threading.Lock()

    def act(guest: Guest, number: int) -> bool:
        with lock:  # all wait for the one that stalls
            if number == 60:
                time.sleep(0.5)
        return guest.say(ok())

    with Rogue(act) as rogue:
        ran = bench(tmp_path, rogue.url, "--rate", "100", "--arrivals", "constant", "--duration", "2s", *BODY)
    assert ran.figures["max_ms"] > 400
    assert ran.figures["p90_ms"] > 100  # a quarter of all came up while the server stood still
    with Rogue(act) as rogue:
        closed = bench(tmp_path, rogue.url, "--clients", "1", "--duration", "2s", *BODY)
    assert closed.figures["max_ms"] > 450
    assert closed.figures["p99_ms"] < 100


def test_wrong_answers_are_found(tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"n": 1, "right": {"x": 1}}\n{"n": 2, "right": {"x": 2}}\n')
    with Rogue(lambda guest, number: guest.say(ok(b'{"x": 1}'))) as rogue:
        ran = bench(tmp_path, rogue.url, "--jsonl", asked, "--expect", "field:right", "--requests", "10")
    assert ran.figures["wrong"] == 5
    assert set(rogue.bodies) == {b'{"n":1}', b'{"n":2}'}
    assert ran.figures["goodput"] == 0.5


def test_requirements_decide_the_exit_code_and_are_named(tmp_path: Path) -> None:
    with Rogue(after(0.02, ok())) as rogue:
        met = bench(tmp_path, rogue.url, "--requests", "5", *BODY, "--require", "goodput>=0.99,p50>15ms")
        unmet = bench(tmp_path, rogue.url, "--requests", "5", *BODY, "--require", "goodput>=0.99,p50<10ms")
    assert met.code == 0, met.err
    assert unmet.code == 3
    assert "requirement not met at 1 client: p50<10ms; it is " in unmet.err
    assert "goodput" not in unmet.err


def test_results_are_compared_and_drawn(tmp_path: Path) -> None:
    old, html = tmp_path / "old.json", tmp_path / "report.html"
    flags = ("--requests", "20", *BODY)
    with Rogue(after(0.04, ok())) as rogue:
        bench(tmp_path, rogue.url, *flags)
    (tmp_path / "results.json").rename(old)
    with Rogue(after(0.0, ok())) as rogue:
        ran = bench(tmp_path, rogue.url, *flags, "--compare", old, "--html", html)
    assert ran.code == 0, ran.err
    (row,) = [line for line in ran.out.splitlines() if line.startswith("  p50 ")]
    assert row.endswith("better")
    assert "Latency over time" in html.read_text()
    with Rogue(after(0.0, ok())) as rogue:
        other = bench(tmp_path, rogue.url, "--rate", "50", "--duration", "1", *BODY, "--compare", old)
    assert other.code == 1
    assert "nothing was compared" in other.err


def test_a_refusal_is_counted_by_its_status(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n"
    with Rogue(lambda guest, number: guest.say(refusal if number % 2 else ok())) as rogue:
        ran = bench(tmp_path, rogue.url, "--requests", "10", *BODY)
    assert ran.levels[0]["statuses"] == {"429": 5}
    assert "50.0% of the requests got no answer" in ran.err


def test_tls_servers_can_be_measured(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *subject, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    with Rogue(lambda guest, number: guest.say(ok()), tls=(certificate, key)) as rogue:
        ran = bench(tmp_path, rogue.url, "--clients", "3", "--requests", "30", "--insecure", *BODY)
        wary = bench(tmp_path, rogue.url, "--requests", "3", *BODY)
    assert (ran.code, ran.figures["goodput"]) == (0, 1)
    assert ran.figures["connections"] == 3
    assert wary.code == 2
    assert "certificate not trusted" in wary.err


# ---------------------------------------------------------------------- Timebound itself


def test_an_app_is_started_asked_its_own_example_and_stopped(tmp_path: Path) -> None:
    app = tmp_path / "app.py"  # its own, so that no other test serves it
    shutil.copy(MODELS / "echo.py", app)
    ran = bench(tmp_path, app, "--clients", "4", "--requests", "40")
    assert ran.code == 0, ran.err
    assert ran.figures["goodput"] == 1
    assert ran.levels[0]["sources"] == {"computed": 40}
    assert _servers(app) == []


def test_a_model_that_keeps_answers_by_content_computes_every_request(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import timebound as tb\nclass Keeps(tb.Model):\n    cache = 'content'\n    example = {'n': 1}\n"
        "    class Request(tb.Struct):\n        n: int\n"
        "    def infer(self, batch): return [each.n for each in batch]\n"
    )
    ran = bench(tmp_path, app, "--requests", "20")
    assert ran.levels[0]["sources"] == {"computed": 20}, ran.err
    given = bench(tmp_path, app, "--requests", "20", "--body", '{"n": 1}')
    assert given.levels[0]["sources"]["stored"] > 10


def test_an_app_that_does_not_start_is_told_in_its_own_words(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("import timebound as tb\nclass M(tb.Model):\n    def load(self): raise RuntimeError('no weights')\n")
    ran = bench(tmp_path, app)
    assert ran.code == 2
    assert "no weights" in ran.err


def test_a_running_server_is_asked_for_path_deadline_and_body(tmp_path: Path) -> None:
    with Serving("demo") as serving:
        ran = bench(tmp_path, serving.url, "--rates", "20,40", "--duration", "1s")
        other = bench(tmp_path, f"{serving.url}/predictions/nothing")
    assert ran.code == 0, ran.err
    assert [level["plan"]["deadline_s"] for level in ran.levels] == [1.0, 1.0]
    assert ran.figures["full_share"] + ran.figures["partial_share"] == 1
    assert other.code == 2
    assert "no model of the server answers at /predictions/nothing" in other.err


RAW = """
import timebound as tb


class Weigh(tb.Model):
    samples = [{"title": "few", "body": b"abc"}, {"title": "more", "body": b"abcdef"}]

    def infer(self, batch):
        return [{"bytes": len(body)} for body in batch]
"""


def test_a_model_without_an_example_is_asked_its_samples(tmp_path: Path) -> None:
    app, right = tmp_path / "app.py", tmp_path / "right.jsonl"
    app.write_text(RAW)
    right.write_text('{"bytes": 3}\n{"bytes": 6}\n')
    ran = bench(tmp_path, app, "--requests", "20", "--expect", right)
    assert ran.code == 0, ran.err
    assert (ran.figures["goodput"], ran.figures["wrong"]) == (1, 0)


def test_bodies_may_be_made_up_from_the_schema(tmp_path: Path) -> None:
    ran = bench(tmp_path, MODELS / "echo.py", "--from", "schema", "--requests", "40", "--clients", "4")
    assert ran.code == 0, ran.err
    assert ran.figures["goodput"] == 1


def _servers(app: Path) -> list[str]:
    """The processes that serve it."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if str(app).encode() in command and b"bench" not in command:
                    lines.append(entry.name)
    return lines


# ---------------------------------------------------------------------- a person at the terminal


def _start(folder: Path, url: str, terminal: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "timebound.cli", "bench", url, "--duration", "60s", *BODY]
    command += ["--json", str(folder / "results.json")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True, env=clean_environment())


def _read_until(terminal: int, words: str) -> str:
    said, end = "", time.monotonic() + PATIENCE_S
    while words not in said:
        assert time.monotonic() < end, f"waited in vain for {words!r}; it said: {said}"
        if select.select([terminal], [], [], 0.2)[0]:
            said += os.read(terminal, 4096).decode()
    return said


def test_progress_is_one_line_on_a_terminal_and_ctrl_c_prints_the_results_so_far(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with Rogue(after(0.01, ok())) as rogue:
        process = _start(tmp_path, rogue.url, theirs)
        said = _read_until(ours, "goodput 1.000")
        assert "\n" not in said
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 130
    assert "cut short" in out
    level = json.loads((tmp_path / "results.json").read_text())["levels"][0]
    assert level["is_interrupted"]
    assert level["figures"]["requests"] > 10
    assert level["figures"]["seconds"] < 30


def test_what_is_exported_for_postman_and_jmeter_is_answered(tmp_path: Path) -> None:
    postman, jmeter = tmp_path / "c.json", tmp_path / "p.jmx"
    counted = {"COMPUTED": str(tmp_path / "computed")}
    with Serving(MODELS / "counts.py", "--workers", "1", environment=counted) as serving:
        models = serving.http.get("/v1/models").json()["models"]
        done = bench(tmp_path, serving.url, "--model", "counts", "--export", postman, "--export", jmeter)
        assert (done.code, done.levels) == (0, [])
        assert "nothing was measured" in done.out
        folders = {folder["name"]: folder["item"] for folder in json.loads(postman.read_text())["item"]}
        assert set(folders) == {"asked", "counts", "contents", "server"}
        for model in models:
            paths = {each["request"]["url"]["raw"].removeprefix("{{server}}") for each in folders[model["name"]]}
            assert paths == set(model["paths"])
        for each in (each for requests in folders.values() for each in requests):
            request = each["request"]
            url = request["url"]["raw"].replace("{{server}}", serving.url)
            body = request.get("body", {}).get("raw", "").replace("{{$guid}}", "g").replace("{{$randomInt}}", "7")
            headers = {header["key"]: header["value"].replace("{{$guid}}", "g") for header in request["header"]}
            answer = serving.http.request(request["method"], url, content=body, headers=headers)
            assert answer.status_code == 200, each["name"]
        plan = ET.parse(jmeter)
        said = {each.get("name"): each.text or "" for each in plan.iter() if each.get("name")}
        body = said["Argument.value"].replace("${__UUID()}", "h").replace("${__counter(FALSE,)}", "8")
        headers = {"content-type": "application/json"}
        assert serving.http.post(said["HTTPSampler.path"], content=body, headers=headers).status_code == 200

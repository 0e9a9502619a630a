"""`timebound doctor` on real things: broken and healthy models, a taken port, a Redis that is down or locked."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live.serving import PATIENCE_S, clean_environment
from tests.redis_server import RedisServer, free_port

pytestmark = pytest.mark.live

Findings = dict[str, list[dict[str, str]]]

APP = """
import socket, time, os
import timebound as tb

class Adds(tb.Model):
    deadline = {deadline}
    example = {{"n": 1}}

    class Request(tb.Struct):
        n: int

    def load(self):
        self.one = 1

    def prepare(self, request):
        {prepare}
        return request.n

    def infer(self, batch):
        {infer}
        return [n + self.one for n in batch]
{more}
"""


def doctor(folder: Path, *arguments: str) -> tuple[int, Findings]:
    """The exit code, and the findings by check."""
    command = [sys.executable, "-m", "timebound.cli", "doctor", "--json", "--port", "0", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert not done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] == (done.returncode == 0)
    found: Findings = {}
    for finding in document["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return done.returncode, found


def app(folder: Path, *, deadline: float = 1.0, prepare: str = "pass", infer: str = "pass", fallback: str = "") -> str:
    more = f"\n    def fallback(self, request):\n        return {fallback}\n" if fallback else ""
    (folder / "app.py").write_text(APP.format(deadline=deadline, prepare=prepare, infer=infer, more=more))
    return "app.py"


def only(found: Findings, check: str) -> tuple[str, str]:
    (finding,) = found[check]
    return finding["state"], f"{finding['text']}; {finding['cure']}"


def test_a_healthy_model_is_told_with_its_stages_and_batches(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, app(tmp_path, fallback="{'n': 0}"))
    assert code == 0, found
    state, text = only(found, "adds")
    assert state == "ok"
    assert all(f"batch of {size}:" in text for size in (1, 2, 8))
    assert "prepare + infer + finish" in text
    assert only(found, "adds deadline")[0] == only(found, "adds fallback")[0] == "ok"
    assert only(found, "model memory")[0] == "ok"
    assert "adds waiting" not in found


@pytest.mark.parametrize(
    ("broken", "check", "said"),
    [
        ({"infer": "return [1]  # forgets"}, "model", "outputs for 2 items"),
        ({"infer": "raise RuntimeError('no weights')"}, "model", "no weights"),
        ({"infer": "os.abort()"}, "model", "died of SIGABRT in adds's first run"),
        ({"infer": "os._exit(3)"}, "model", "left in adds's first run"),
        ({"infer": "time.sleep(0.05)", "deadline": 0.02}, "adds deadline", "no answer will be in time"),
        ({"fallback": "{'n': self.one}"}, "adds fallback", "must do without what load() sets"),
    ],
)
def test_a_broken_model_is_a_problem_that_names_its_stage(
    tmp_path: Path, broken: dict[str, str], check: str, said: str
) -> None:
    code, found = doctor(tmp_path, app(tmp_path, **broken))  # type: ignore[arg-type]
    assert code == 1
    state, text = only(found, check)
    assert state == "problem"
    assert said in text


def test_a_method_that_only_other_servers_call_is_told(tmp_path: Path) -> None:
    name = app(tmp_path)
    (tmp_path / name).write_text(
        (tmp_path / name).read_text() + "\n    def postprocess(self, output):\n        return 0\n"
    )
    code, found = doctor(tmp_path, name)
    assert code == 0, found
    state, text = only(found, "adds class")
    assert state == "warning"
    assert "postprocess means nothing to the server; did you mean finish?" in text


def test_a_model_that_does_not_come_back_is_ended(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, app(tmp_path, infer="time.sleep(1000)"), "--timeout", "3s")
    assert code == 1
    assert "adds's first run takes longer than 3 s" in only(found, "model")[1]


def test_a_prepare_that_asks_the_network_and_a_tight_deadline_are_warnings(tmp_path: Path) -> None:
    with socket.socket() as service:
        service.bind(("127.0.0.1", 0))
        service.listen(1000)
        port = service.getsockname()[1]
        asks = f"socket.create_connection(('127.0.0.1', {port})).close()"
        code, found = doctor(tmp_path, app(tmp_path, prepare=asks, infer="time.sleep(0.2)", deadline=0.3))
    assert code == 0
    texts = [finding["text"] for finding in found["adds waiting"]]
    assert f"prepare connects to 127.0.0.1:{port}" in texts
    state, text = only(found, "adds deadline")
    assert state == "warning"
    assert "leaves little" in text
    assert only(found, "adds fallback")[0] == "warning"


def test_a_target_that_is_not_there_and_settings_that_cannot_be_read_are_problems(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, "nowhere.py")
    assert (code, only(found, "target")[0]) == (1, "problem")
    (tmp_path / "timebound.toml").write_text("prot = 1\n")
    code, found = doctor(tmp_path)
    assert code == 1
    assert "did you mean 'port'" in only(found, "settings")[1]


def test_a_taken_port_is_a_problem(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        code, found = doctor(tmp_path, "--port", port)
    assert code == 1
    assert f"port {port} is taken" in only(found, "port")[1]
    assert doctor(tmp_path, "--port", port)[0] == 0


def test_a_redis_that_is_well(tmp_path: Path, redis: RedisServer) -> None:
    code, found = doctor(tmp_path, "--store", redis.url)
    assert code == 0, found
    assert "can be written to; Redis" in only(found, "store")[1]
    assert "ms away as a rule" in only(found, "store distance")[1]
    assert only(found, "store memory")[0] == only(found, "store password")[0] == "ok"


def test_a_redis_that_is_down_is_a_problem(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, "--store", f"redis://127.0.0.1:{free_port()}/0")
    assert code == 1
    state, text = only(found, "store")
    assert state == "problem"
    assert "start it" in text


def test_a_redis_with_another_password_is_a_problem_that_does_not_show_ours(tmp_path: Path) -> None:
    with RedisServer("--requirepass", "right", "--maxmemory-policy", "allkeys-lru") as locked:
        url = locked.url.replace("redis://", "redis://:{}@")
        code, found = doctor(tmp_path, "--store", url.format("mistaken"))
        assert code == 1
        state, text = only(found, "store")
        assert state == "problem"
        assert "WRONGPASS" in text
        assert "mistaken" not in json.dumps(found)
        code, found = doctor(tmp_path, "--store", url.format("right"))
    assert code == 0
    assert only(found, "store password")[1].startswith("given and taken")
    state, text = only(found, "store memory")
    assert state == "warning"
    assert "volatile-ttl" in text


def test_lines_are_for_people_and_help_has_examples(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "timebound.cli", "doctor"]
    lines = subprocess.run(
        [*command, "--port", "0"], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert all(line.split()[0] in ("ok", "warning") for line in lines[:-1])
    assert lines[-1].endswith("ok")
    words = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "examples:" in words


def test_what_was_captured_on_a_device_is_told_and_what_was_not(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        """
import numpy as np
import torch
import timebound as tb

class Looking(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum().item() >= 0 else x

class Sums(tb.Model):
    max_batch = 4
    example = {"numbers": [1.0, 2.0]}

    class Request(tb.Struct):
        numbers: list[float]

    def load(self):
        self.net = tb.torch(lambda: torch.nn.Linear(2, 1), device="host")

    def prepare(self, request):
        return np.array(request.numbers, np.float32)

    def infer(self, batch):
        return self.net(batch)

    def finish(self, output, request):
        return float(output[0])

class Looks(Sums):
    def load(self):
        self.net = tb.torch(Looking, device="host")
"""
    )
    code, found = doctor(tmp_path, "app.py")
    assert code == 0, found
    assert "host (a stand-in for tests), torch" in only(found, "device")[1]
    assert "host: 3 batch sizes captured, 1, 2, 4; " in only(found, "sums device")[1]
    eager, why = found["looks device"]
    assert eager["text"].startswith("host: runs eagerly, nothing is captured")
    assert (why["state"], "Looking runs without being captured" in why["text"]) == ("warning", True)

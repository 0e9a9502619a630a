"""What `timebound up` tells nginx, and how it divides the machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from tests.live.serving import eventually

from timebound.cli import main
from timebound.clock import MonotonicClock
from timebound.config import Config
from timebound.errors import SetupError
from timebound.stack.part import Part, _tied_to_us
from timebound.stack.ports import check_free, has_port
from timebound.stack.stack import Plan, Stack, allowed, configuration, share_of

_NGINX = shutil.which("nginx") or "/usr/sbin/nginx"


def _is_taken(text: str, folder: Path) -> bool:
    """Whether nginx itself takes this for a configuration."""
    file = folder / "nginx.conf"
    file.write_text(text)
    command = [_NGINX, "-t", "-p", str(folder), "-e", "stderr", "-c", str(file)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_nginx_takes_the_configuration_that_is_written(tmp_path: Path) -> None:
    assert _is_taken(configuration(Config(port=18000), ["127.0.0.1:18001", "[::1]:18002"], tmp_path), tmp_path)


def test_a_request_reaches_the_one_server_of_five_that_takes_it(tmp_path: Path) -> None:
    """As when four come at once, or leave: with fewer tries it would be refused while one is ready."""
    with HTTPServer(("127.0.0.1", 0), _Ready) as ready, ExitStack() as taken:
        threading.Thread(target=ready.serve_forever, daemon=True).start()
        taken.callback(ready.shutdown)
        silent = [taken.enter_context(_taken_port()) for _ in range(5)]
        front, *closed = [port.getsockname()[1] for port in silent]
        silent[0].close()
        addresses = [f"127.0.0.1:{port}" for port in (*closed, ready.server_port)]
        file = tmp_path / "nginx.conf"
        file.write_text(configuration(Config(port=front), addresses, tmp_path))
        nginx = subprocess.Popen([_NGINX, "-p", str(tmp_path), "-e", "stderr", "-c", str(file)])
        taken.callback(nginx.wait)
        taken.callback(nginx.terminate)
        eventually(lambda: has_port(nginx.pid, front), "nginx")
        assert httpx.post(f"http://127.0.0.1:{front}/", json={}, trust_env=False).status_code == 200


class _Ready(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _taken_port() -> socket.socket:
    """A port that nobody listens at, nor anybody else takes."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken


def test_nginx_takes_an_address_of_ip_6_and_a_folder_whose_name_has_a_space(tmp_path: Path) -> None:
    folder = tmp_path / "tmp dir"
    folder.mkdir()
    assert _is_taken(configuration(Config(host="::1"), ["127.0.0.1:8001"], folder), folder)


def test_nginx_refuses_it_once_a_directive_is_misspelt(tmp_path: Path) -> None:
    text = configuration(Config(port=18000), ["127.0.0.1:18001"], tmp_path)
    assert not _is_taken(text.replace("least_conn;", "least_con;"), tmp_path)


def test_every_server_and_the_arrival_stamp_are_in_it(tmp_path: Path) -> None:
    addresses = [f"10.0.0.{number}:8000" for number in (1, 2, 3)]
    text = configuration(Config(port=18000), addresses, tmp_path)
    assert [address for address in addresses if f"server {address} " in text] == addresses
    assert 'X-Request-Start "t=$msec"' in text


@pytest.mark.parametrize(
    ("cores", "replicas", "shares"),
    [
        ([0, 1], 1, [{0, 1}]),
        ([0, 1], 2, [{0}, {1}]),
        ([0, 1], 3, [{0}, {1}, {0}]),
        ([4, 5, 6, 7, 8], 2, [{4, 6, 8}, {5, 7}]),
    ],
)
def test_cores_are_divided_evenly_and_shared_where_they_are_too_few(
    cores: list[int], replicas: int, shares: list[set[int]]
) -> None:
    assert [share_of(cores, place, replicas) for place in range(replicas)] == shares


@pytest.mark.parametrize(
    ("usable", "count", "place", "divided"),
    [
        ([0, 1, 2, 3], 4, 7, [0, 1, 2, 3]),
        ([0, 1, 2, 3], 2, 0, [0, 1]),
        ([0, 1, 2, 3], 2, 1, [2, 3]),
        ([0, 1, 2, 3], 3, 1, [0, 1, 3]),
        ([5], 1, 9, [5]),
    ],
)
def test_no_more_cores_are_divided_than_the_quota_allows(
    usable: list[int], count: int, place: int, divided: list[int]
) -> None:
    assert allowed(usable, count, place) == divided


def test_a_taken_port_is_told_with_whose_it_should_be_and_a_free_one_is_left_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} is taken on 127.0.0.1, and nginx needs it.*--port"):
            check_free("127.0.0.1", port, "nginx")
        with pytest.raises(SetupError, match="is taken"):
            check_free("0.0.0.0", port, "nginx")
    check_free("127.0.0.1", port, "nginx")
    check_free("127.0.0.1", port, "nginx")


def test_a_host_that_is_not_of_this_machine_is_told() -> None:
    with pytest.raises(SetupError, match="check --host"):
        check_free("192.0.2.1", 18000, "nginx")


def test_a_port_belongs_to_the_process_that_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours, subprocess.Popen(["sleep", "60"]) as other:
        port = ours.getsockname()[1]
        assert has_port(os.getpid(), port)
        assert not has_port(other.pid, port)
        other.kill()
    assert not has_port(os.getpid(), port)


def test_a_program_is_not_there_because_another_answers_at_its_port() -> None:
    async def there() -> bool:
        return True

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-c", "import time; time.sleep(0.5); raise SystemExit(3)"]
        part = Part("server 1", command, is_there=there, clock=MonotonicClock(), port=port)
        with pytest.raises(SetupError, match="left with exit code 3 while it started"):
            asyncio.run(part.start())


@pytest.mark.parametrize("form", ["processes", "containers"])
def test_the_example_says_in_a_sentence_that_there_is_no_command(tmp_path: Path, form: str) -> None:
    script = _example(tmp_path)
    env = {"PATH": "/usr/bin:/bin"}
    told = subprocess.run(["/bin/sh", script, form], env=env, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stderr.startswith("run.sh: there is no timebound command")


def test_the_example_takes_the_command_of_the_repository(tmp_path: Path) -> None:
    script = _example(tmp_path)
    command = tmp_path / ".venv" / "bin" / "timebound"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\necho "asked: $*"\n')
    command.chmod(0o755)
    env = {"PATH": "/usr/bin:/bin", "REPLICAS": "3"}
    told = subprocess.run(["/bin/sh", script, "processes"], env=env, capture_output=True, text=True, check=True)
    assert told.stdout == f"asked: up {tmp_path}/examples/handwriting --replicas 3 --port 8000\n"


def _example(repository: Path) -> Path:
    """The example's script in a repository that has nothing else."""
    script = repository / "examples" / "stack" / "run.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "examples" / "stack" / "run.sh", script)
    return script


def test_a_program_whose_stack_has_ended_already_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between fork and the tie nobody tells it of our end; it finds out by its parent, which is not who started it."""
    begun = tmp_path / "begun"
    ours = _tied_to_us(["touch", str(begun)])
    monkeypatch.setattr(os, "getpid", lambda: 1)
    others = _tied_to_us(["touch", str(begun)])

    assert subprocess.run(others, check=False).returncode != 0
    assert not begun.exists()
    assert subprocess.run(ours, check=False).returncode == 0
    assert begun.exists()


def test_a_reload_that_comes_too_early_ends_no_program() -> None:
    command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGHUP)"]
    assert subprocess.run(_tied_to_us(command), check=False).returncode == 0


def test_what_nginx_does_not_say_to_the_servers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").touch()
    assert main(["up", "app.py", "--proxy-protocol", "--trusted-proxies", "127.0.0.1"]) == 2
    assert "leave --proxy-protocol out" in capsys.readouterr().err


def test_a_server_is_waited_for_as_long_as_it_serves_on_and_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: dict[str, float] = {}

    async def stop(part: Part, patience_s: float) -> None:
        waited[part.name] = patience_s

    monkeypatch.setattr(Part, "stop", stop)
    config = Config(port=18000, drain_delay=60.0, grace=10.0)
    plan = Plan(arguments=["app.py"], replicas=1, config=config, store="redis://127.0.0.1:1/0")
    asyncio.run(Stack(plan, tmp_path, MonotonicClock()).stop())
    assert waited["server 1 (port 18001)"] >= 60 + 10


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        (["--also-at", "127.0.0.1:18009"], "2 are to have the same --also-at; leave it out"),
        (["--operator-at", "127.0.0.1:8001", "--port", "8000"], "8001 is one of those that --port 8000 takes"),
        (["--operator-at", "127.0.0.1:7999", "--port", "8000"], "8000 is one of those that --port 8000 takes"),
        (["--operator-at", "127.0.0.1:65535"], "there is no such port for server 2"),
    ],
)
def test_an_address_that_two_would_take_is_refused(
    flag: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").touch()
    assert main(["up", "app.py", "--replicas", "2", *flag]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("operator_at", "told"),
    [
        ("127.0.0.1:18003", "18003 is one of those that --port 18000 takes"),
        ("127.0.0.1:17998", "18000 is one of those that --port 18000 takes"),
        ("127.0.0.1:65534", "there is no such port for server 3"),
    ],
)
def test_a_server_that_would_take_an_address_of_the_stack_is_not_started(
    operator_at: str, told: str, tmp_path: Path
) -> None:
    """Also while nobody listens there: the server whose address it is may be about to start again."""
    config = Config(port=18000, operator_at=operator_at)
    plan = Plan(arguments=["app.py"], replicas=2, config=config, store="redis://127.0.0.1:1/0")
    with pytest.raises(SetupError, match=f"server 3 is not started: .*{told}"):
        asyncio.run(Stack(plan, tmp_path, MonotonicClock()).grow())

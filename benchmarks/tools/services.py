"""Redis and nginx as they come with the system, started here for one measurement each."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from benchmarks.tools.load import HOST, free_port
from benchmarks.tools.processes import StartError

_START_S = 10.0

_NGINX = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream servers {{
{servers}
        keepalive 256;
    }}
    server {{
        listen {host}:{port} backlog=2048;
        keepalive_requests 1000000;
        location / {{
            proxy_pass http://servers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""


class Redis:
    """A Redis that keeps nothing on disk; it can be killed, paused and started again on the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, empty, and wait until it listens."""
        program = _program("redis-server", "redis-server")
        flags = ["--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen([program, *flags], stdout=subprocess.DEVNULL)
        _wait_for(self.port, "redis-server")

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it was."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class Nginx:
    """An nginx that gives requests to servers on these ports in turn."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.port = free_port()
        self._ports = ports
        self._folder = tempfile.TemporaryDirectory(prefix="nginx-")

    def __enter__(self) -> Self:
        servers = "\n".join(f"        server {HOST}:{port} max_fails=0;" for port in self._ports)
        file = Path(self._folder.name) / "nginx.conf"
        file.write_text(_NGINX.format(folder=self._folder.name, servers=servers, host=HOST, port=self.port))
        program = _program("nginx", "nginx-light")
        self._process = subprocess.Popen([program, "-c", str(file), "-p", self._folder.name])
        _wait_for(self.port, "nginx")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def _program(name: str, package: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        raise StartError(f"{name} is not installed; install it with: apt-get install {package}")
    return found


def _wait_for(port: int, name: str) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.01)
    raise StartError(f"{name} did not listen on port {port} within {_START_S:.0f} s")

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
        redis = program("redis-server", "redis-server")
        flags = ["--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen([redis, *flags], stdout=subprocess.DEVNULL)
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


class RedisByFile:
    """A Redis that keeps nothing on disk, reached by a Unix socket: from every network of the machine."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self._path = Path(self._folder.name) / "redis.sock"
        self.url = f"unix://{self._path}"

    def __enter__(self) -> Self:
        where = ["--port", "0", "--unixsocket", str(self._path), "--dir", self._folder.name]
        nothing = ["--save", "", "--appendonly", "no"]
        command = [program("redis-server", "redis-server"), *where, *nothing]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        end = time.monotonic() + _START_S
        while not self._path.exists():
            if time.monotonic() > end:
                self.__exit__()
                raise StartError(f"redis-server made no socket within {_START_S:.0f} s")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


class Cluster:
    """Three primaries of a Redis Cluster, the first with a replica that takes its place when it is killed."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cluster-")
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = [free_port() for _ in range(4)]
        self._first = self._ports[0]
        self.failovers = 0
        """How often the replica was the primary when the one before was started again."""

    @property
    def url(self) -> str:
        return "redis-cluster://" + ",".join(f"{HOST}:{port}" for port in self._ports[:3])

    def __enter__(self) -> Self:
        for port in self._ports:
            self._start(port)
        command = [program("redis-cli", "redis-tools"), "--cluster", "create"]
        for port in self._ports[:3]:
            command.append(f"{HOST}:{port}")
        subprocess.run([*command, "--cluster-yes"], check=True, stdout=subprocess.DEVNULL)
        self._follow(self._ports[3], self._first)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._nodes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._folder.cleanup()

    def kill(self) -> None:
        """End the first primary without a word; its replica takes over after a second or two."""
        self._nodes[self._first].kill()
        self._nodes[self._first].wait()

    def start(self) -> None:
        """Start what was killed; it finds its place as a replica."""
        self.failovers += _ask(self._ports[3], "ROLE").startswith("master")
        self._start(self._first)

    def pause(self) -> None:
        """Another primary keeps its connections and answers nothing."""
        self._nodes[self._ports[1]].send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it was."""
        self._nodes[self._ports[1]].send_signal(signal.SIGCONT)

    def _start(self, port: int) -> None:
        folder = Path(self._folder.name) / str(port)
        folder.mkdir(exist_ok=True)
        bus = folder / "bus"
        if not bus.exists():
            bus.write_text(str(free_port()))
        flags = ["--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "no", "--dir", str(folder)]
        wishes = ["--cluster-enabled", "yes", "--cluster-port", bus.read_text(), "--cluster-node-timeout", "1000"]
        server = program("redis-server", "redis-server")
        self._nodes[port] = subprocess.Popen([server, *flags, *wishes], stdout=subprocess.DEVNULL)
        _wait_for(port, "redis-server")

    def _follow(self, replica: int, primary: int) -> None:
        """Make the one a replica of the other, and wait until it has its data."""
        bus = (Path(self._folder.name) / str(primary) / "bus").read_text()
        _ask(replica, "CLUSTER", "MEET", HOST, str(primary), bus)
        name = _ask(primary, "CLUSTER", "MYID")
        end = time.monotonic() + _START_S
        while "OK" not in _ask(replica, "CLUSTER", "REPLICATE", name):
            if time.monotonic() > end:
                raise StartError(f"the replica did not follow within {_START_S:.0f} s")
            time.sleep(0.05)
        while "master_link_status:up" not in _ask(replica, "INFO", "replication"):
            time.sleep(0.05)


def _ask(port: int, *command: str) -> str:
    client = program("redis-cli", "redis-tools")
    done = subprocess.run([client, "-h", HOST, "-p", str(port), *command], capture_output=True, text=True, check=True)
    return done.stdout.strip()


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
        nginx = program("nginx", "nginx-light")
        self._process = subprocess.Popen([nginx, "-c", str(file), "-p", self._folder.name])
        _wait_for(self.port, "nginx")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def program(name: str, package: str) -> str:
    """Where a program is; `StartError` with its package if it is not installed."""
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

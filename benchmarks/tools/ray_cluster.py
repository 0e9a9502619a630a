"""A Ray of one's own on this machine: a head, perhaps nodes, apart from any other, and nothing left of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any, Self
from uuid import uuid4

from benchmarks.tools.load import HOST, free_port
from benchmarks.tools.namespaces import Namespace
from benchmarks.tools.processes import StartError, die_with_parent
from timebound.lab.load.processes import pss_mib, stat_of

START_S = 90.0
_TAG = "RAY_CLUSTER_TAG"

NODE = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "500ms",
    "RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S": "1",
    "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": "1",
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
}
"""What docs/ray.md says to set on each node."""

_APART = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # its own: whoever else is on this machine has no business here
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # nobody else sends requests here
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
}

_SHUT_DOWN = "import ray, sys; from ray import serve; ray.init(sys.argv[1], namespace='serve'); serve.shutdown()"


def is_installed() -> bool:
    """Whether there is a Ray Serve to start."""
    return find_spec("ray") is not None and find_spec("ray.serve") is not None


class Cluster:
    """One head node, entered when it takes applications. `variables` come on top of `NODE`.

    With its `dashboard` it takes `serve deploy`. In a `network` of its own it has the address `host` there; then
    `add_node` can give it nodes in other networks.
    """

    def __init__(
        self,
        cores: int = 2,
        variables: Mapping[str, str] | None = None,
        *,
        host: str = HOST,
        network: Namespace | None = None,
        dashboard: bool = False,
    ) -> None:
        self._dashboard = free_port() if dashboard else None
        self._folder = tempfile.TemporaryDirectory(prefix="tbray-")  # short: Ray's sockets lie below it
        self._tag = uuid4().hex
        self._host = host
        self._network = network
        self._address = f"{host}:{free_port()}"
        self._cores = cores
        self.port = free_port()
        """Where its ingress listens."""
        own = {_TAG: self._tag, "RAY_ADDRESS": self._address, "RAY_AUTH_TOKEN": token_hex(32)}
        if dashboard:
            own["RAY_DASHBOARD_ADDRESS"] = f"http://{host}:{self._dashboard}"
        self.environment = {**os.environ, **NODE, **_APART, **self._places("head"), **(variables or {}), **own}
        self._head: subprocess.Popen[bytes] | None = None
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._deployed = 0

    def _places(self, node: str) -> dict[str, str]:
        """Files and ports that are the same for every Ray of a machine unless something is said."""
        folder = f"{self._folder.name}/ha-{node}"
        return {
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{folder}/haproxy.cfg",
            "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{folder}/admin.sock",
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{folder}/metrics.sock",
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": folder,
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{folder}/server-state",
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        }

    def __enter__(self) -> Self:
        port = self._address.rpartition(":")[2]
        small = ["--include-dashboard", "false", "--temp-dir", f"{self._folder.name}/ray"]
        if self._dashboard is not None:
            small[1:2] = ["true", "--dashboard-host", self._host, "--dashboard-port", str(self._dashboard)]
        self._head = self._start("head", self._network, self._host, self._cores, "--head", "--port", port, *small)
        return self

    def add_node(self, name: str, network: Namespace, host: str, cores: int) -> None:
        """One node more, at the address `host` of that network. It is lost when its processes are."""
        self._wait_for_head()
        self._nodes.append(self._start(name, network, host, cores, "--address", self._address))

    def _start(
        self, name: str, network: Namespace | None, host: str, cores: int, *role: str
    ) -> subprocess.Popen[bytes]:
        size = ["--num-cpus", str(cores), "--object-store-memory", "80000000"]
        size += ["--node-ip-address", host] if network is not None else []
        quiet = ["--include-log-monitor", "false", "--disable-usage-stats"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *role, *size, *quiet]
        known = {each: value for each, value in self.environment.items() if each != "RAY_ADDRESS"}
        with self._log(name).open("wb") as log:
            return subprocess.Popen(
                network.inside(*command) if network is not None else command,
                env={**known, **self._places(name)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - whoever starts one has no threads that hold locks
            )

    def _wait_for_head(self) -> None:
        end = time.monotonic() + START_S
        host, _, port = self._address.rpartition(":")
        while True:
            with self._network.entered() if self._network is not None else nullcontext(), suppress(OSError):
                socket.create_connection((host, int(port)), 1.0).close()
                return
            if time.monotonic() > end:
                raise StartError(f"Ray's head did not start in {START_S:.0f} s.\n{self.said()}")
            time.sleep(0.1)

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._folder.cleanup()

    def deploy(self, *applications: Mapping[str, Any], is_up: Callable[[], bool]) -> None:
        """`serve run` a config file with these, and wait until `is_up` says so."""
        self._deployed += 1
        file = Path(self._folder.name) / f"config-{self._deployed}.yaml"
        # Replicas listen at this host too, and the ingress on another node must reach them there.
        http = {"host": HOST if self._network is None else "0.0.0.0", "port": self.port}
        front = {"proxy_location": "HeadOnly", "http_options": http}
        file.write_text(json.dumps({**front, "applications": applications}))  # JSON is YAML
        self._do("deploy", "-m", "ray.serve.scripts", "run", "--non-blocking", str(file))
        end = time.monotonic() + START_S
        while not is_up():
            if time.monotonic() > end:
                raise StartError(f"Ray brought nothing up in {START_S:.0f} s.\n{self.said()}")
            time.sleep(0.1)

    def shut_down(self) -> None:
        """End Serve in order; Ray itself goes on."""
        self._do("shutdown", "-c", _SHUT_DOWN, self._address)

    def stop(self) -> None:
        """End Ray, and then whatever is left."""
        if self._head is not None:
            self._head.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._head.wait(2)
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in (self._head, *self._nodes):
                process.wait()
            self._head = None

    def processes(self) -> dict[int, str]:
        """Everything that lives and was started from here, by its number: what it is."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and f"{_TAG}={self._tag}".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def replicas(self) -> int:
        """How many replicas of Serve have a process."""
        return sum(what.startswith("ray::ServeReplica") for what in self.processes().values())

    def cpu_s(self) -> float:
        """Processor time that everything which lives here has taken so far."""
        return sum(int(ticks) for pid in self.processes() for ticks in stat_of(pid)[11:13]) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Memory of everything here; what several share is counted once."""
        return sum(map(pss_mib, self.processes())) * 2**20 / 1e6

    def said(self) -> str:
        """The last lines of the head, of `serve run`, and of every replica."""
        files = [*Path(self._folder.name).glob("*.log"), *Path(self._folder.name).glob("ray/session_*/logs/worker*err")]
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-1500:]}" for file in files)

    def _log(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name}.log"

    def _do(self, name: str, *arguments: str) -> None:
        end = time.monotonic() + START_S
        while True:
            with self._log(name).open("wb") as log:
                command = ["nice", "-n", "10", sys.executable, *arguments]  # it takes seconds of a core
                command = self._network.inside(*command) if self._network is not None else command
                code = subprocess.call(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT)
            if code == 0:
                return
            if time.monotonic() > end or self._head is None or self._head.poll() is not None:
                raise StartError(f"`{name}` on Ray failed.\n{self.said()}")
            time.sleep(0.2)  # the head may not be there yet


def timebound_app(target: Path, replicas: int = 1, *, cores: float = 1, **more: Any) -> dict[str, Any]:
    """An application for `deploy`; `options`, `user_config` and others are given by name."""
    args = {"target": str(target), "profiles": "none", "workers": 1, **more.pop("options", {})}
    count = {} if "autoscaling_config" in more else {"num_replicas": replicas}
    deployment = {"name": "Timebound", **count, "ray_actor_options": {"num_cpus": cores}, **more}
    what = {"import_path": "timebound.ray:app", "args": args, "deployments": [deployment]}
    return {"name": "default", "route_prefix": "/", **what}

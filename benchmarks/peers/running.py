"""One contestant's server: started, watched, started anew when a scene has left it unfit."""

import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import uvloop

from benchmarks.peers.roster import Contestant, Start
from benchmarks.peers.traffic import PeerTraffic
from benchmarks.tools.contestants import ROOT
from benchmarks.tools.load import answers_right, free_port, is_right
from benchmarks.tools.processes import Server
from benchmarks.tools.seen import SEEN_ENV
from benchmarks.tools.workload import MODELS_ENV, Sample
from timebound.lab.load.client import fetch
from timebound.lab.load.processes import process_tree, stat_of, tree_cpu_s

# A server that is itself again answers one request in time and rests.
SETTLE_S = 2.5
RESTING_CORES = 0.5
PROBE_S = 0.25
_GLANCE_S = 0.3


class Running:
    """A contestant's server as a context manager; `ready` gives one that owes nothing to the scene before."""

    def __init__(
        self, contestant: Contestant, place: Path, models: Path, samples: Sequence[Sample], serve_args: Sequence[str]
    ) -> None:
        self.contestant = contestant
        self._place = place
        self._models = models
        self._samples = samples
        self._serve_args = serve_args
        self._server: Server | None = None
        self._port = 0
        self._folder = tempfile.TemporaryDirectory(prefix="peer-")
        self.seen = Path(self._folder.name) / "seen"

    def __enter__(self) -> Self:
        self.seen.mkdir()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    @property
    def server(self) -> Server:
        """The one that runs now."""
        assert self._server is not None
        return self._server

    def traffic(self, headers: str = "") -> PeerTraffic:
        """Requests in the form that it takes."""
        return PeerTraffic(self.contestant.form, self._port, self._samples, headers)

    def ready(self) -> bool:
        """See that the server is itself; says whether it had to be started anew."""
        if self._is_settled():
            return False
        self.stop()
        self._start()
        return True

    def stop(self) -> None:
        """End it, if it runs."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Stopped by the system while the block lasts: some servers poll while they have nothing to do."""
        stopped = process_tree(self.server.pid)
        _signal(stopped, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(stopped, signal.SIGCONT)

    def workers(self) -> list[int]:
        """The processes that have the engine loaded, the busiest first."""
        found = [pid for pid in process_tree(self.server.pid) if _has_engine(pid)]
        return sorted(found, key=_cpu_ticks, reverse=True)

    def _start(self) -> None:
        self._port = free_port()
        start = Start(self._place, Path(self._folder.name), self._port, self._serve_args)
        env = {MODELS_ENV: str(self._models), SEEN_ENV: str(self.seen), **self.contestant.env}
        if not self.contestant.is_ours:
            env |= _environment_of(self._place)
        traffic = self.traffic()
        name, command = self.contestant.name, self.contestant.command(start)
        self._server = Server(name, command, env, lambda: answers_right(traffic)).__enter__()

    def _is_settled(self) -> bool:
        give_up = time.monotonic() + SETTLE_S
        while time.monotonic() < give_up:
            used = tree_cpu_s(self.server.pid)
            time.sleep(_GLANCE_S)
            cores = (tree_cpu_s(self.server.pid) - used) / _GLANCE_S
            if cores < RESTING_CORES and self._answers_in_time():
                return True
        return False

    def _answers_in_time(self) -> bool:
        traffic = self.traffic()
        exchange = traffic.next()
        try:
            reply = uvloop.run(fetch(traffic.address, exchange.request, PROBE_S))
        except (ConnectionError, TimeoutError):
            return False
        return reply.status == 200 and is_right(exchange, reply)


def _environment_of(place: Path) -> dict[str, str]:
    """Its own programs first, and our modules importable."""
    path = f"{place / 'bin'}:{os.environ.get('PATH', '')}"
    return {"PATH": path, "VIRTUAL_ENV": str(place), "PYTHONPATH": str(ROOT)}


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _has_engine(pid: int) -> bool:
    try:
        return "onnxruntime" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def _cpu_ticks(pid: int) -> int:
    stat = stat_of(pid)
    return int(stat[11]) + int(stat[12]) if stat else 0

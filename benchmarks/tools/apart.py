"""Two servers in two networks: nginx, Redis and one server here, the other at the far end of a slow line.

nginx has the very configuration that `timebound up` writes. Redis is reached by a Unix socket, so that nothing but the
way of the requests is slow.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from benchmarks.tools.asking import OnceTraffic
from benchmarks.tools.load import answers_right, local_address
from benchmarks.tools.namespaces import Namespace
from benchmarks.tools.processes import Server
from benchmarks.tools.seen import SEEN_ENV
from benchmarks.tools.services import RedisByFile, program
from benchmarks.tools.slow_link import FAR, NEAR, SlowLink
from benchmarks.tools.upstack import APP
from timebound.config import Config
from timebound.lab.load.client import Address
from timebound.stack.stack import configuration, share_of

_HERE = "127.0.0.1"
_FRONT, _SERVER = 8000, 8001


class Apart:
    """The whole of it for the length of a `with` block. Needs root, /dev/net/tun, nginx and redis-server."""

    port = _FRONT

    def __init__(
        self, serve_args: Sequence[str], *, round_trip_s: float, loss: float, is_believed: bool = True
    ) -> None:
        self._is_believed = is_believed
        self._options = ["--workers", "1", "--profiles", "none", *serve_args]
        self._round_trip_s = round_trip_s
        self._loss = loss
        self._all = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._all.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()

    @contextmanager
    def reach(self) -> Iterator[None]:
        """Clients are where nginx is."""
        with self._near.entered():
            yield

    def _start(self) -> None:
        enter = self._all.enter_context
        folder = Path(enter(tempfile.TemporaryDirectory(prefix="apart-")))
        self.seen = folder / "seen"
        self.seen.mkdir()
        self._near, far = enter(Namespace("near")), enter(Namespace("far"))
        enter(SlowLink(self._near, far, round_trip_s=self._round_trip_s, loss=self._loss))
        redis = enter(RedisByFile())
        for place, (network, host, proxy) in enumerate(((self._near, _HERE, _HERE), (far, FAR, NEAR))):
            cores = share_of(sorted(os.sched_getaffinity(0)), place, 2)
            where = ["--host", host, "--port", str(_SERVER)]
            where += ["--trusted-proxies", proxy] if self._is_believed else []
            store = ["--store", redis.url]
            serve = [sys.executable, "-m", "timebound", "serve", str(APP), *where, *store, *self._options]
            pinned = ["taskset", "-c", ",".join(map(str, cores)), *serve]
            enter(self._server(f"server at {host}", network.inside(*pinned), host, _SERVER))
        servers = [f"{_HERE}:{_SERVER}", f"{FAR}:{_SERVER}"]
        file = folder / "nginx.conf"
        file.write_text(configuration(Config(port=_FRONT), servers, folder))
        nginx = [program("nginx", "nginx-light"), "-p", str(folder), "-e", "stderr", "-c", str(file)]
        enter(self._server("nginx", self._near.inside(*nginx), _HERE, _FRONT))

    def _server(self, name: str, command: Sequence[str], host: str, port: int) -> Server:
        traffic = OnceTraffic(port)
        traffic.address = Address(host, port, host, host) if host != _HERE else local_address(port)

        def answers() -> bool:
            with self.reach():
                return answers_right(traffic)

        return Server(name, command, {SEEN_ENV: str(self.seen)}, answers)

"""A real cluster of redis-servers of one's own, to be hurt as a test likes."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import hiredis
from tests.redis_server import RedisServer, eventually, free_port

_SLOTS = 16384


class ClusterServers:
    """Primaries with equal shares of the slots, the first of them with replicas; ended with the `with` block.

    With a `certificate`, a folder with cert.pem and key.pem, everything is said by TLS: to clients and among the nodes.
    """

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 0,
        timeout_ms: int = 5000,
        options: tuple[str, ...] = (),
        certificate: Path | None = None,
    ) -> None:
        self._primaries = primaries
        self._certificate = certificate
        self.nodes: list[RedisServer] = []
        self._buses: list[int] = []
        for _ in range(primaries + replicas):
            self._buses.append(free_port())
            wishes = ("--cluster-enabled", "yes", "--cluster-port", str(self._buses[-1]))
            waits = ("--cluster-node-timeout", str(timeout_ms), "--repl-diskless-sync-delay", "0")
            self.nodes.append(RedisServer(*wishes, *waits, *options))
            if certificate is not None:
                self.nodes[-1].speak_tls(certificate, "--tls-cluster", "yes", "--tls-replication", "yes")
        self._running = ExitStack()

    @property
    def url(self) -> str:
        if self._certificate is not None:
            return f"rediss-cluster://{self.hosts}/?ssl_ca_certs={self._certificate / 'cert.pem'}"
        return f"redis-cluster://{self.hosts}"

    @property
    def hosts(self) -> str:
        """The primaries' addresses as a URL has them."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[: self._primaries])

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._running.close()  # or those that run would be another test's trouble
            raise
        return self

    def _start(self) -> None:
        for node in self.nodes:
            self._running.enter_context(node)
        first = self.nodes[0]
        for number, node in enumerate(self.nodes[: self._primaries]):
            start, end = (_SLOTS * n // self._primaries for n in (number, number + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", str(start), str(end - 1))
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", str(first.port), str(self._buses[0]))
        eventually(lambda: all(self._knows(node) == len(self.nodes) for node in self.nodes))
        for number, node in enumerate(self.nodes[self._primaries :]):
            primary = self.nodes[number % self._primaries].ask("CLUSTER", "MYID")
            node.ask("CLUSTER", "REPLICATE", primary)
        eventually(lambda: all(self._is_well(node) for node in self.nodes))

    def __exit__(self, *error: object) -> None:
        self._running.close()

    def each(self, *command: str) -> list[Any]:
        """What every node that answers replies."""
        replies = []
        for node in self.nodes:
            with suppress(OSError, hiredis.ReplyError):
                replies.append(node.ask(*command))
        return replies

    def keys(self, pattern: str) -> list[bytes]:
        """All keys like this, on all nodes."""
        return [key for found in self.each("KEYS", pattern) for key in found]

    def _knows(self, node: RedisServer) -> int:
        return len(node.ask("CLUSTER", "NODES").splitlines())

    def _is_well(self, node: RedisServer) -> bool:
        if b"cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
            return False
        return b"role:slave" not in (said := node.ask("INFO", "replication")) or b"master_link_status:up" in said

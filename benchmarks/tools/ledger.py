"""A ledger of requests: each one that is sent must get exactly one answer, in time and right."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.tools.load import HOST
from benchmarks.tools.stamped import Stamped
from timebound.lab.load.client import Reply

PATIENCE_S = 3.0
"""How long after its deadline an answer is still waited for: late and lost are different things."""
DEADLY = ("crash", "hang")


@dataclass
class Entry:
    """One request that was sent, and what came back."""

    id: str
    n: int
    harm: str
    fault: str
    """The trouble that was going on when it was sent."""
    limit_s: float = 0.0
    """The time it asked for; 0 is the model's deadline."""
    sent: float = 0.0
    answers: int = 0
    status: int = 0
    seconds: float = 0.0
    """From the giving of the bytes to the system until the kernel had the answer for this process."""
    noticed_s: float = 0.0
    """The same until this process saw it: with its own delay."""
    quality: str = ""
    code: str = ""
    releases: tuple[int, ...] = ()
    """Which code prepared, inferred and finished it."""
    batch: str = ""
    """As the worker that computed it names its batch."""
    is_wrong: bool = False
    why_lost: str = ""
    timing: str = ""


@dataclass
class Ledger:
    """All entries of a run, and the client that sends them."""

    deadline_s: float
    now: Callable[[], float]
    path: str
    port: int
    entries: list[Entry] = field(default_factory=list)
    open: int = 0

    def __post_init__(self) -> None:
        self.client = Stamped(self.port, self.now, self._unasked)
        self._by_id: dict[str, Entry] = {}

    def send(
        self, n: int, harm: str, fault: str, *, salt: int = 0, limit_s: float = 0.0, hedges: Entry | None = None
    ) -> Entry:
        """Write a request down and send it; as a second attempt of one that is out already if it `hedges` that."""
        entry = Entry(f"r{len(self.entries)}", n, harm, fault, limit_s)
        self.entries.append(entry)
        self._by_id[entry.id] = entry
        told = {name: value for name, value in (("n", n), ("harm", harm), ("salt", salt)) if value or name == "n"}
        body = json.dumps(told, indent=1 if hedges else None).encode()
        # What does harm has no key of its own: a retry of it is told by its body.
        key = "" if harm else f"Idempotency-Key: {hedges.id if hedges else entry.id}\r\n"
        key += f"Timebound-Timeout-Ms: {1e3 * limit_s:.0f}\r\n" if limit_s else ""
        head = f"POST {self.path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n{key}"
        request = f"{head}X-Request-Id: {entry.id}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        self.open += 1
        self.client.send(request, _Sent(self, entry))
        return entry

    def note(self, entry: Entry, reply: Reply) -> None:
        """An answer has come on the connection of this request."""
        if reply.header(b"x-request-id") != entry.id and not _is_turned_away(reply):
            entry.is_wrong = True
            self._unasked(reply)
            return
        entry.answers += 1
        entry.status, entry.timing = reply.status, reply.header(b"server-timing")
        entry.quality = reply.quality if reply.status == 200 else ""
        facts = json.loads(reply.body)
        entry.code = facts.get("code", "")
        if entry.quality == "full":
            entry.batch = facts["batch"]
            entry.releases = tuple(facts["releases"])
            # The worker saw the batch that the gateway made, all of it, and one code did all of the work.
            is_whole = facts["size"] == int(reply.header(b"timebound-batch"))
            entry.is_wrong = facts["answer"] != 7 * entry.n + 3 or not is_whole or len(set(entry.releases)) != 1
        # Nobody who did no harm may get `crashes_worker`, and no deadly item can have an answer of the model.
        entry.is_wrong |= entry.code == "crashes_worker" and entry.harm not in DEADLY
        entry.is_wrong |= entry.quality == "full" and entry.harm in DEADLY

    def _unasked(self, reply: Reply) -> None:
        """An answer that nobody waits for: one too many for the request that it names."""
        entry = self._by_id.get(reply.header(b"x-request-id"))
        if entry is not None:
            entry.answers += 1

    def is_late(self, entry: Entry) -> bool:
        """Whether its answer was not there before its deadline."""
        return entry.answers > 0 and entry.seconds > self.limit_of(entry)

    def limit_of(self, entry: Entry) -> float:
        """The time it has."""
        return entry.limit_s or self.deadline_s

    def is_bad(self, entry: Entry) -> bool:
        """Whether anything about it is not as promised."""
        return entry.is_wrong or entry.answers != 1 or self.is_late(entry)

    def counts(self, entries: Iterable[Entry]) -> dict[str, int]:
        """What came of these requests."""
        found = Counter[str]()
        for entry in entries:
            found["requests"] += 1
            found["lost"] += entry.answers == 0
            found["late"] += self.is_late(entry)
            found["wrong"] += entry.is_wrong
            found["answered_twice"] += entry.answers > 1
            found["full"] += entry.quality == "full"
            found["fallback"] += entry.quality == "fallback"
            found["refused"] += entry.status >= 400
        return dict(found)

    def batches(self) -> dict[str, list[Entry]]:
        """The full answers by the batch they were computed in."""
        found: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if entry.batch:
                found[entry.batch].append(entry)
        return found

    async def settle(self) -> None:
        """Wait for the answers that are still out, and a little for answers too many; what is missing then is lost."""
        end = self.now() + max([self.deadline_s, *(entry.limit_s for entry in self.entries)]) + PATIENCE_S
        while self.open and self.now() < end:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        self.client.close()


def _is_turned_away(reply: Reply) -> bool:
    """Whether the connection was refused before anything of the request was read; such an answer has no id."""
    return reply.status in (429, 503) and not reply.header(b"x-request-id")


class _Sent:
    """One request on its way."""

    def __init__(self, ledger: Ledger, entry: Entry) -> None:
        self._ledger = ledger
        self._entry = entry

    def sent(self, at: float) -> None:
        # A deadline counts from a request's arrival, not from the wish to open a connection for it.
        self._entry.sent = at

    def answered(self, reply: Reply, received: float, noticed: float) -> None:
        self._ledger.open -= 1
        self._entry.seconds, self._entry.noticed_s = received - self._entry.sent, noticed - self._entry.sent
        self._ledger.note(self._entry, reply)

    def lost(self, why: str) -> None:
        self._ledger.open -= 1
        self._entry.why_lost = why


async def leave_early(client_count: int, ledger: Ledger, *, extra: str = "") -> None:
    """Clients that send a request and go before the answer; nothing is owed to them. `extra` are headers of theirs."""
    for number in range(client_count):
        _, writer = await asyncio.open_connection(HOST, ledger.port)
        body = b'{"n":%d}' % number
        head = f"POST {ledger.path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        head += extra.replace("NUMBER", f"{ledger.now()}-{number}")
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await asyncio.sleep(0.002)
        writer.transport.abort()

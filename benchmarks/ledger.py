"""A ledger of requests: each one that is sent must get exactly one answer, in time and right."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.load import HOST
from timebound.lab.load.client import Call, Client, Reply

PATIENCE_S = 3.0
"""How long after its deadline an answer is still waited for: late and lost are different things."""


@dataclass
class Entry:
    """One request that was sent, and what came back."""

    id: str
    n: int
    harm: str
    fault: str
    """The trouble that was going on when it was sent."""
    sent: float = 0.0
    answers: int = 0
    status: int = 0
    seconds: float = 0.0
    quality: str = ""
    code: str = ""
    release: int = 0
    is_wrong: bool = False
    why_lost: str = ""


@dataclass
class Ledger:
    """All entries of a run."""

    deadline_s: float
    now: Callable[[], float]
    path: str
    entries: list[Entry] = field(default_factory=list)
    open: int = 0

    def enter(self, n: int, harm: str, fault: str) -> tuple[Entry, bytes]:
        """Write a request down; its bytes."""
        entry = Entry(f"r{len(self.entries)}", n, harm, fault)
        self.entries.append(entry)
        body = json.dumps({"n": n, "harm": harm} if harm else {"n": n}).encode()
        # What does harm has no key of its own: a retry of it is told by its body.
        key = "" if harm else f"Idempotency-Key: {entry.id}\r\n"
        head = f"POST {self.path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n{key}"
        return entry, f"{head}X-Request-Id: {entry.id}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def note(self, entry: Entry, reply: Reply) -> None:
        """An answer has come."""
        entry.answers += 1
        entry.status, entry.seconds = reply.status, self.now() - entry.sent
        entry.quality = reply.quality if reply.status == 200 else ""
        if reply.header(b"x-request-id") != entry.id:
            entry.is_wrong = True
            return
        facts = json.loads(reply.body)
        entry.code = facts.get("code", "")
        if reply.status == 200 and entry.quality == "full":
            entry.release = facts["release"]
            entry.is_wrong = facts["answer"] != 7 * entry.n + 3 or facts["releases_in_batch"] != 1
        # Nobody who did no harm may be called poison, and no deadly item can have an answer of the model.
        entry.is_wrong |= entry.code == "poison" and entry.harm not in ("crash", "hang")
        entry.is_wrong |= entry.quality == "full" and entry.harm in ("crash", "hang")

    def counts(self, entries: Iterable[Entry]) -> dict[str, int]:
        """What came of these requests."""
        found = Counter[str]()
        for entry in entries:
            found["requests"] += 1
            found["lost"] += entry.answers == 0
            found["late"] += entry.answers > 0 and entry.seconds > self.deadline_s
            found["wrong"] += entry.is_wrong
            found["answered_twice"] += entry.answers > 1
            found["full"] += entry.quality == "full"
            found["fallback"] += entry.quality == "fallback"
            found["refused"] += entry.status >= 400
        return dict(found)


class Sent(Call):
    """A request on its way over the lab's client."""

    __slots__ = ("_entry", "_ledger")

    def __init__(self, ledger: Ledger, n: int, harm: str, fault: str) -> None:
        self._ledger = ledger
        self._entry, request = ledger.enter(n, harm, fault)
        super().__init__(request)
        ledger.open += 1

    def sent(self) -> None:
        # A deadline counts from a request's arrival, not from the wish to open a connection for it.
        self._entry.sent = self._ledger.now()

    def answered(self, reply: Reply) -> None:
        self._ledger.open -= 1
        self._ledger.note(self._entry, reply)

    def lost(self, why: str) -> None:
        self._ledger.open -= 1
        self._entry.why_lost = why


async def send_and_listen(ledger: Ledger, port: int, n: int, fault: str) -> None:
    """Send one request on a connection of its own and listen long after the answer: is there a second one?"""
    entry, request = ledger.enter(n, "", fault)
    ledger.open += 1
    heard = b""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        entry.sent = ledger.now()
        writer.write(request)
        try:
            async with asyncio.timeout(ledger.deadline_s + PATIENCE_S):
                while data := await reader.read(1 << 16):
                    if not heard:
                        entry.seconds = ledger.now() - entry.sent
                    heard += data
        except TimeoutError:
            pass
        writer.close()
    except OSError as error:
        entry.why_lost = str(error)
    ledger.open -= 1
    entry.answers = heard.count(b"HTTP/1.1 ")
    if entry.answers:
        entry.status = int(heard.split()[1])
        entry.quality = "fallback" if b"quality: fallback" in heard.lower() else "full" if entry.status == 200 else ""
        entry.is_wrong = entry.quality == "full" and b'"answer":%d' % (7 * n + 3) not in heard


async def leave_early(client_count: int, ledger: Ledger, port: int) -> None:
    """Clients that send a request and go before the answer; nothing is owed to them."""
    for number in range(client_count):
        _, writer = await asyncio.open_connection(HOST, port)
        body = b'{"n":%d}' % number
        head = f"POST {ledger.path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await asyncio.sleep(0.002)
        writer.transport.abort()


async def settle(ledger: Ledger, client: Client) -> None:
    """Wait for the answers that are still out; what is not there then is lost."""
    end = ledger.now() + ledger.deadline_s + PATIENCE_S + 0.5
    while ledger.open and ledger.now() < end:
        await asyncio.sleep(0.02)
    await client.close()

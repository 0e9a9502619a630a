"""A worker's hands: processes that prepare what its slots give them, from one queue, and are replaced when they die.

A slot puts a batch on the queue in parts and waits; a thread of the worker's, the foreman, hears the hands and gives
each its next part. A part is given to whichever hand is free, so slots cannot wait for each other. What a hand was at
when it died stands on a board in shared memory: that item is looked at, and all others of the part are prepared anew.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from timebound.clock import Clock
from timebound.types import Loss
from timebound.workers import hand as own
from timebound.workers.hired import Hired, Order, Part
from timebound.workers.launch import spawn
from timebound.workers.messages import WorkerPlan
from timebound.workers.staging import Area, Form

log = logging.getLogger("timebound.worker")

INBOX_BYTES = 65 << 20
"""For a slot's frame; larger ones, which only a single large body makes, are prepared in the worker."""
LEARN_S = 120.0
"""Hands that are not up after so long are not waited for."""
_LOOK_EVERY_S = 0.05
_HANG_FACTOR = 10.0
"""A hand hangs at an item that takes so many times longer than any lately, and longer than its order allows."""
_FORGETS = 0.98
"""With each part, the longest time counts less."""
_OWN_DOING_DEATHS, _DEATHS = 2, 3
"""So many crashes alone prove an item guilty; so many deaths if it was killed from outside each time."""
_MOST_FAILURES = 5
"""Hands that die in a row before they are up; then no more are started."""
_PAUSE_S = 0.2
_NO_PROCESS_S = 10.0
"""After the system refused to start one."""
_LARGEST_PART = 64
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Hands:
    """So many hands for a worker with so many slots. Start them before weights are loaded: both take a while."""

    def __init__(self, plan: WorkerPlan, count: int, slots: int, niceness: int, clock: Clock) -> None:
        self.count = count
        self.unable: dict[str, str] = {}
        """Models that hands cannot prepare, and why."""
        self.areas = [Area() for _ in range(slots)]
        self._plan = plan
        self._niceness = max(0, niceness)
        self._clock = clock
        self._board_file = os.memfd_create("timebound-board")
        os.ftruncate(self._board_file, count * 16)
        self._board = own.Board(self._board_file, count)
        self._lock = threading.RLock()
        self._hired: dict[int, Hired] = {}
        self._idle: list[Hired] = []
        self._parts: deque[Part] = deque()
        self._to_hire: list[tuple[float, int]] = [(0.0, number) for number in range(count)]
        self._failures = 0
        self._is_refused = False
        self._slowest_s = 0.0
        self._learn: own.Learn | None = None
        self._heard = threading.Condition(self._lock)
        self._is_closed = False
        self._bell, self._rope = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._encoder = msgspec.msgpack.Encoder()
        # It lives as long as the worker does, as it must: a hand dies with the thread that started it.
        self._foreman = threading.Thread(target=self._oversee, name="foreman", daemon=True)
        self._foreman.start()

    @property
    def up(self) -> int:
        """Hands that take parts now."""
        return sum(hired.is_up for hired in self._hired.values())

    def pids(self) -> list[int]:
        """Of the hands that live."""
        with self._lock:
            return [hired.pid for hired in self._hired.values()]

    def learn(self, models: Mapping[str, tuple[Form, bytes, int]]) -> None:
        """Tell them what items look like, by model: the form, an example's body, rows; return when they are up.

        `unable` then says what they cannot prepare.
        """
        rows_bytes = max((form.bytes(room) for form, _, room in models.values()), default=0)
        for area in self.areas:
            area.open(rows_bytes, INBOX_BYTES)
        with self._lock:
            self._learn = own.Learn(len(self.areas[0].rows), dict(models))
            for hired in list(self._hired.values()):
                self._send(hired, self._learn)
            end = self._clock.now() + LEARN_S
            while not self._heard.wait_for(self._are_there, _LOOK_EVERY_S) and self._clock.now() < end:
                self._end_stopped()

    def _are_there(self) -> bool:
        return self.up == self.count or self._has_given_up or self._is_closed or self._is_refused

    # ------------------------------------------------------------------ for slots

    def is_able(self, model: str) -> bool:
        """Whether somebody would prepare this model's items."""
        return model not in self.unable and any(hired.is_up for hired in list(self._hired.values()))

    def put(self, order: Order, items: Sequence[tuple[int, int, int]], size: int) -> None:
        """Have these prepared, in parts of this size."""
        size = min(size, _LARGEST_PART)
        parts = [Part(order, items[start : start + size]) for start in range(0, len(items), size)]
        with self._lock:
            order.left += len(parts)
            self._parts.extend(parts)
            self._feed()

    def wait(self, order: Order) -> list[int]:
        """Wait for news of an order; places that nobody but the worker can prepare now."""
        if not order.news.wait(_LOOK_EVERY_S):
            self._look()
        order.news.clear()
        if self.is_able(order.model):
            return []
        with self._lock:
            mine = [part for part in self._parts if part.order is order]
            for part in mine:
                self._parts.remove(part)
                order.left -= 1
            for part in [part for part in mine if part.is_risky]:
                self._give_up(part)
        return [place for part in mine for _, _, place in part.items if place not in order.killers]

    def _look(self) -> None:
        """End hands that hang; the foreman then hears that they are gone."""
        now = self._clock.now()
        with self._lock:
            self._end_stopped()
            for hired in self._hired.values():
                row, since = self._board.read(hired.number)
                if row < 0:  # it has not begun
                    since = hired.given
                if not hired.parts or hired.ended_as is not None:
                    continue
                limit_s = max(hired.parts[0].order.hang_s, _HANG_FACTOR * self._slowest_s)
                if hired.hangs(since, now, limit_s):
                    hired.kill(Loss.STOPPED if hired.is_stopped else Loss.HUNG)

    def _end_stopped(self) -> None:
        """End hands that somebody has stopped (SIGSTOP) on their way: the next ones come at once."""
        for hired in [each for each in self._hired.values() if not each.is_up and each.ended_as is None]:
            if hired.is_stopped:
                hired.kill(Loss.STOPPED)

    def close(self) -> None:
        """End them."""
        with self._lock:
            self._is_closed = True
            for hired in self._hired.values():
                os.kill(hired.pid, signal.SIGKILL)
        self._rope.close()
        self._foreman.join()

    # ------------------------------------------------------------------ the foreman

    def _oversee(self) -> None:
        replies = msgspec.msgpack.Decoder(own.Reply)
        while not self._is_closed:
            self._hire_who_is_due()
            pause_s = max(0.0, min(when for when, _ in self._to_hire) - self._clock.now()) if self._to_hire else None
            for key, _ in self._selector.select(pause_s):
                hired: Hired | None = key.data
                if hired is None:  # the bell: they are closed
                    continue
                if key.fileobj is not hired.sock:
                    self._ended(hired)
                    continue
                try:
                    data = hired.sock.recv(own.MESSAGE_BYTES)
                except ConnectionError:  # it died with its next part unread; what it said before is still to be heard
                    continue
                if data:
                    self._hear(hired, replies.decode(data))
                else:
                    self._lost(hired)
        self._bury_all()

    def _ended(self, hired: Hired) -> None:
        """Its process is gone: after what it has still said comes the end, whoever else has its socket."""
        if hired.end is not None:
            self._selector.unregister(hired.end)
            os.close(hired.end)
            hired.end = None
            with suppress(OSError):
                hired.sock.shutdown(socket.SHUT_RDWR)

    def _hear(self, hired: Hired, reply: own.Reply) -> None:
        with self._lock:
            if isinstance(reply, own.Learned):
                self._failures, hired.is_up = 0, True
                self.unable.update(reply.unable)
                self._heard.notify_all()
            else:
                part, hired.given = hired.parts.popleft(), self._clock.now()
                self._slowest_s = max(_FORGETS * self._slowest_s, reply.slowest_s)
                part.order.outcomes.update(reply.outcomes)
                part.order.odd += reply.odd
                self._done(part.order)
            if not hired.parts:
                self._idle.append(hired)
            self._feed()

    def _done(self, order: Order) -> None:
        order.left -= 1
        if not order.left:
            order.news.set()

    def _feed(self) -> None:
        while (part := next((part for part in self._parts if part.order.model not in self.unable), None)) is not None:
            hired = self._idle.pop() if self._idle else self._next_in_line()
            if hired is None:
                return
            self._parts.remove(part)
            if not hired.parts:
                hired.given = self._clock.now()
            hired.parts.append(part)
            self._send(hired, own.Piece(part.order.slot, part.order.model, part.items))

    def _next_in_line(self) -> Hired | None:
        """Where much waits, a hand that is busy gets its next part early, and need not wait for this process."""
        if len(self._parts) <= self.up:
            return None
        return next((hired for hired in self._hired.values() if hired.is_up and len(hired.parts) == 1), None)

    def _send(self, hired: Hired, task: own.Task) -> None:
        with suppress(OSError):  # it is gone, which the foreman hears
            hired.sock.send(self._encoder.encode(task))

    def _lost(self, hired: Hired) -> None:
        """A hand is gone: look into what it was at, and have another one come."""
        self._ended(hired)
        self._selector.unregister(hired.sock)
        hired.sock.close()
        with self._lock:
            with suppress(ProcessLookupError):
                os.kill(hired.pid, signal.SIGKILL)  # it may only have closed its end; nothing writes to rows any more
            code = os.waitstatus_to_exitcode(os.waitpid(hired.pid, 0)[1])
            row, _ = self._board.read(hired.number)
            self._board.set(hired.number, own.NOBODY, 0.0)
            del self._hired[hired.number]
            self._failures = 0 if hired.is_up else self._failures + 1
            hired.is_up = False
            if hired in self._idle:
                self._idle.remove(hired)
            pause_s = _PAUSE_S * 2**self._failures if self._failures else 0.0
            if not self._has_given_up:
                self._to_hire.append((self._clock.now() + pause_s, hired.number))
            elif not self._is_closed:
                log.error("preparing processes cannot be started; the worker prepares by itself", extra={"code": code})
            loss = hired.ended_as or (Loss.KILLED if code == -signal.SIGKILL else Loss.CRASHED)
            if not self._is_closed and not self._failures:
                log.warning("a preparing process is gone", extra={"pid": hired.pid, "code": code, "loss": loss.value})
            self._parts.extendleft(reversed(list(hired.parts)[1:]))
            if hired.parts:
                self._look_into(hired.parts[0], row, loss)
            for part in self._parts:
                part.order.news.set()  # if nobody is left, the slots must know
            self._heard.notify_all()
            self._feed()

    def _look_into(self, part: Part, row: int, loss: Loss) -> None:
        order = part.order
        suspect = [item for item in part.items if item[2] == row]
        others = [item for item in part.items if item[2] != row]
        order.left -= 1
        if suspect and loss is not Loss.STOPPED:
            order.deaths.setdefault(row, []).append(loss)
        for items in (others, suspect):
            if items:
                order.left += 1
                self._parts.appendleft(Part(order, items))
        if suspect and self._is_proven(order.deaths.get(row, [])):
            order.left -= 1
            self._give_up(self._parts.popleft())
        order.news.set()

    def _is_proven(self, deaths: Sequence[Loss]) -> bool:
        own_doing = sum(loss is not Loss.KILLED for loss in deaths)
        # After a hang there is no time to see whether it hangs again.
        return Loss.HUNG in deaths or own_doing >= _OWN_DOING_DEATHS or len(deaths) >= _DEATHS

    def _give_up(self, part: Part) -> None:
        """Nobody prepares these any more, for nobody is left to see whether it was their doing, or it was."""
        for _, _, place in part.items:
            deaths = part.order.deaths.get(place, [])
            # The first SIGKILL from outside says nothing about the item: then the worker prepares it.
            if part.order.is_suspect or len(deaths) > 1 or deaths != [Loss.KILLED]:
                part.order.killers[place] = deaths

    # ------------------------------------------------------------------ hiring

    @property
    def _has_given_up(self) -> bool:
        return self._failures >= _MOST_FAILURES

    def _hire_who_is_due(self) -> None:
        now = self._clock.now()
        due = [entry for entry in self._to_hire if entry[0] <= now and not self._is_closed]
        for entry in due:
            self._to_hire.remove(entry)
            try:
                hired = self._hire(entry[1])
            except OSError as error:
                log.error("cannot start a preparing process: %s", error)
                with self._lock:
                    self._is_refused = True  # who waits for all of them waits in vain
                    self._heard.notify_all()
                self._to_hire.append((now + _NO_PROCESS_S, entry[1]))
                continue
            with self._lock:
                self._hired[hired.number] = hired
                self._send(hired, own.Equip(self._plan))
                if self._learn is not None:
                    self._send(hired, self._learn)
            for file in (hired.sock, hired.end):
                if file is not None:
                    self._selector.register(file, selectors.EVENT_READ, hired)

    def _hire(self, number: int) -> Hired:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * own.MESSAGE_BYTES)
        files = [theirs.fileno(), self._board_file, *(area.file for area in self.areas)]
        numbers = [files[0], files[1], number, self.count, self._niceness, os.getpid(), *files[2:]]
        command = [sys.executable, "-m", "timebound.workers.hand", *map(str, numbers)]
        # No GPU for it: a context there would cost memory, and a process that computes there slows the worker down.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **dict.fromkeys(_THREADS, "1")}
        try:
            return Hired(number, ours, spawn(command, environment, {file: file for file in files}))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def _bury_all(self) -> None:
        for hired in self._hired.values():
            self._ended(hired)
            hired.sock.close()
            os.waitpid(hired.pid, 0)
        self._bell.close()
        self._selector.close()
        os.close(self._board_file)

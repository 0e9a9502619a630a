"""Large bodies take the memory that is counted for them, and give it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from tests.live.serving import Serving, eventually, memory_of
from tests.live.wire import Wire, get

pytestmark = pytest.mark.live

CHUNKED = b"POST /raw HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = 100_000
SIZE = 9_000_000
HEAP = 64 * 2**20
USUAL = 8_000_000
"""What the gateway grows by under any traffic."""

MODEL = """
import timebound as tb

class Raw(tb.Model):
    path = "/raw"
    accepts = "application/octet-stream"
    deadline = 20.0

    def prepare(self, body):
        return len(body)

    def infer(self, batch):
        return batch
"""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "app.py").write_text(MODEL)
    with Serving(tmp_path / "app.py", "--workers", "1", "--slots", "1", "--max-body", "20MB") as serving:
        yield serving
        assert "Traceback" not in serving.said


def most_of(pid: int) -> int:
    """The most that a process has held since `forget_most`."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def forget_most(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def heaps_of(pid: int) -> int:
    """How many heaps a process has besides the first: glibc reserves 64 MiB for each, at a multiple of that."""
    lines = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    found = [(*line[0].split("-"), line[1]) for line in lines if len(line) == 5]
    parts = [(int(start, 16), int(end, 16), may) for start, end, may in found]
    pairs = pairwise(parts)
    return sum(
        start % HEAP == 0 and after - start == HEAP and end == begin and (may, may_not) == ("rw-p", "---p")
        for (start, end, may), (begin, after, may_not) in pairs
    )


def send_side_by_side(serving: Serving, wires: list[Wire]) -> None:
    for wire in wires:
        wire.send(CHUNKED)
    for _ in range(SIZE // PIECE):
        for wire in wires:
            wire.send(b"%x\r\n" % PIECE, bytes(PIECE), b"\r\n")
    eventually(lambda: all(wire.is_read for wire in wires), "all of it read")
    eventually(lambda: serving.gauge("held_bytes") >= len(wires) * SIZE, "all of it counted")


def test_bodies_that_grow_side_by_side_take_what_they_hold_and_give_it_back(serving: Serving) -> None:
    with serving.wire() as wire:
        send_side_by_side(serving, [wire])  # whatever the first large body changes for those to come
    eventually(lambda: serving.gauge("held_bytes") == 0, "nothing held")
    before = memory_of(serving.pid)
    for _ in range(3):
        forget_most(serving.pid)
        with serving.wire() as one, serving.wire() as other, serving.wire() as third:
            send_side_by_side(serving, [one, other, third])
            assert most_of(serving.pid) - before < 3 * SIZE + USUAL
        eventually(lambda: serving.gauge("held_bytes") == 0, "nothing held")
        eventually(lambda: memory_of(serving.pid) - before < USUAL, "the memory given back")


@pytest.mark.parametrize("is_told", [True, False])
def test_a_whole_body_is_not_copied_on_its_way(serving: Serving, *, is_told: bool) -> None:
    body = bytes(2 * SIZE)
    serving.http.post("/raw", content=body[:SIZE])
    before = memory_of(serving.pid)
    forget_most(serving.pid)
    pieces = (body[at : at + PIECE] for at in range(0, len(body), PIECE))
    answer = serving.http.post("/raw", content=body if is_told else pieces)
    assert (answer.status_code, answer.json()) == (200, len(body))
    assert most_of(serving.pid) - before < len(body) + USUAL
    eventually(lambda: memory_of(serving.pid) - before < USUAL, "the memory given back")


def test_threads_that_read_files_take_their_memory_from_one_heap(serving: Serving) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(serving.wire()) for _ in range(60)]
        for wire in wires:
            wire.send(get("/ui/vendor/swagger-ui/swagger-ui.css") * 2)
        assert {wire.read().status for wire in wires} == {200}
        assert len(list(Path(f"/proc/{serving.pid}/task").iterdir())) > 20
        assert heaps_of(serving.pid) <= 1

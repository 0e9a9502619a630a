"""Clients of gRPC streams that ask for large answers and do not read them."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.live.serving import Serving, eventually, memory_of

from timebound.rpc.schema import message

pytestmark = pytest.mark.live

ANSWER, MOST_HELD = 4_000_000, 60_000_000
STREAMS, EACH = 14, 8
Request = message("inference.ModelInferRequest")
Answer = message("inference.ModelStreamInferResponse")
APP = f"""
import timebound as tb

class Large(tb.Model):
    deadline = 20.0
    max_batch = 1

    def infer(self, batch):
        return [bytes({ANSWER}) if body == b"much" else body for body in batch]

    def finish(self, output, request):
        return output
"""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    app = tmp_path / "app.py"
    app.write_text(APP)
    more = ("--workers", "1", "--grpc-port", "0", "--max-body", "1000000", "--max-held", str(MOST_HELD))
    with Serving(app, *more, "--max-queue", "200") as serving:
        yield serving
        assert "Traceback" not in serving.said


def asking(body: bytes) -> bytes:
    request = Request(model_name="large")
    request.inputs.add(name="body", datatype="BYTES", shape=[1]).contents.bytes_contents.append(body)
    return bytes(request.SerializeToString())


class Client:
    """A stream that stays open."""

    def __init__(self, serving: Serving) -> None:
        address = serving.wait_for_line("listening for gRPC")["at"].partition("://")[2]
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._asked: queue.Queue[bytes | None] = queue.Queue()
        self._channel = grpc.insecure_channel(address, options)
        stream = self._channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        self.call: Any = stream(iter(self._asked.get, None), timeout=60)

    def ask(self, *bodies: bytes) -> None:
        for body in bodies:
            self._asked.put(asking(body))

    def answers(self, count: int) -> list[str | int]:
        """The errors of the next answers, or how large these are."""
        found = [Answer.FromString(next(self.call)) for _ in range(count)]
        return [each.error_message or sum(map(len, each.infer_response.raw_output_contents)) - 4 for each in found]

    def leave(self) -> None:
        self._asked.put(None)
        self.call.cancel()
        self._channel.close()


def wait_until_nothing_goes_on(serving: Serving) -> None:
    """Until much was asked, and then nothing is computed for a dozen looks in turn."""
    looks = [False]

    def is_still() -> bool:
        looks.append(serving.gauge("requests_pending") == 0 and serving.gauge("held_bytes") > ANSWER)
        return all(looks[-12:])

    eventually(is_still, "much lies unread, and nothing is computed")


def test_unread_answers_of_streams_are_counted_and_bounded_and_nobody_else_is_held_up(serving: Serving) -> None:
    reader = Client(serving)
    reader.ask(b"little")
    assert reader.answers(1) == [len(b"little")]
    before = memory_of(serving.pid)
    lazy = [Client(serving) for _ in range(STREAMS)]
    for client in lazy:
        client.ask(*[b"much"] * EACH)
    wait_until_nothing_goes_on(serving)
    assert ANSWER < serving.gauge("held_bytes") <= MOST_HELD
    assert memory_of(serving.pid) - before < 4 * MOST_HELD  # all these answers have 450 MB, and gRPC copies some
    reader.ask(b"little")
    assert reader.answers(1) == [len(b"little")]
    seen = [each for client in lazy for each in client.answers(EACH)]
    assert set(seen) == {ANSWER, "the answers before this one fill the memory; read them, then ask again"}
    for client in lazy:
        client.ask(b"much")
        assert client.answers(1) == [ANSWER]
    for client in (reader, *lazy):
        client.leave()
    eventually(lambda: serving.gauge("held_bytes") == 0, "nothing is held")


def test_what_was_not_read_counts_no_more_when_its_client_leaves(serving: Serving) -> None:
    client = Client(serving)
    client.ask(*[b"much"] * EACH)
    wait_until_nothing_goes_on(serving)
    client.leave()
    eventually(lambda: serving.gauge("held_bytes") == 0, "nothing is held")


def test_a_stream_that_is_read_gets_all_its_large_answers(serving: Serving) -> None:
    client = Client(serving)
    client.ask(*[b"much"] * 30)
    assert client.answers(30) == [ANSWER] * 30
    client.leave()

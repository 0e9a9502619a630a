"""Workers come and go while gRPC is open: connections stay, streams go on, and no worker has gRPC's sockets."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.live.serving import PATIENCE_S, Serving, eventually
from tests.models.onnx_files import save_doubler

from timebound.rpc.schema import message

pytestmark = pytest.mark.live

SERVICE = "/inference.GRPCInferenceService/"
Response = message("inference.ModelStreamInferResponse")


def request(number: int) -> bytes:
    asked = message("inference.ModelInferRequest")(model_name="doubler", id=str(number))
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 3]).contents.fp32_contents.extend([1.0, 2.0, 3.0])
    made: bytes = asked.SerializeToString()
    return made


def test_a_stream_goes_on_when_the_worker_is_killed_and_replaced(tmp_path: Path) -> None:
    with Serving(save_doubler(tmp_path / "doubler.onnx"), "--workers", "1", "--grpc-port", "0") as serving:
        where = str(serving.wait_for_line("listening for gRPC")["at"]).removeprefix("grpc://")
        asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

        def requests() -> Iterator[bytes]:
            while (each := asked.get()) is not None:
                yield each

        with grpc.insecure_channel(where) as channel:
            answers = channel.stream_stream(f"{SERVICE}ModelStreamInfer")(requests(), timeout=6 * PATIENCE_S)

            def ask(number: int) -> Any:
                asked.put(request(number))
                answer = Response.FromString(next(answers))
                assert answer.error_message == ""
                return answer.infer_response.id

            assert ask(0) == "0"
            for number in range(1, 4):
                (worker,) = serving.workers()
                assert not sockets_of(worker["pid"]) & listening(int(where.rpartition(":")[2]))
                os.kill(worker["pid"], signal.SIGKILL)
                old = worker["pid"]
                eventually(lambda old=old: is_replaced(serving, old), "another worker in its place")  # type: ignore[misc]
                assert ask(number) == str(number)
            asked.put(None)
        assert "Traceback" not in serving.said


def is_replaced(serving: Serving, old: int) -> bool:
    workers = serving.workers()
    return serving.is_ready() and [each["pid"] for each in workers if each["is_up"]] not in ([], [old])


def listening(port: int) -> set[str]:
    """The inodes of the sockets that listen at a port."""
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return {row[9] for row in rows[1:] if row[1].endswith(f":{port:04X}") and row[3] == "0A"}


def sockets_of(pid: int) -> set[str]:
    links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}

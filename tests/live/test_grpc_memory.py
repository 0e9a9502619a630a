"""What large messages by gRPC cost the event loop: memory that the system gives anew, page by page, costs most."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from tests.live.serving import Serving
from tests.models.onnx_files import UINT8, save_echo

from timebound.rpc.schema import message

pytestmark = pytest.mark.live

SIZE, TIMES = 9_000_000, 10
PAGES = SIZE / 4_096
Request = message("inference.ModelInferRequest")
Response = message("inference.ModelInferResponse")


def faults(pid: int) -> int:
    """How often memory was given to a process, a page each time."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def test_large_messages_find_the_memory_of_those_before_them(tmp_path: Path) -> None:
    save_echo(tmp_path / "bytes" / "1" / "model.onnx", UINT8, ("n", "w"))
    request = Request(model_name="bytes", raw_input_contents=[bytes(SIZE)])
    request.inputs.add(name="x", datatype="UINT8", shape=[1, SIZE])
    body = request.SerializeToString()
    with Serving(tmp_path, "--workers", "1", "--deadline", "20", "--grpc-port", "0") as serving:
        address = serving.wait_for_line("listening for gRPC")["at"].partition("://")[2]
        with grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

            def ask() -> None:
                answer = Response.FromString(call(body, timeout=20))
                assert len(answer.raw_output_contents[0]) == SIZE

            for _ in range(4):
                ask()
            before = faults(serving.pid)
            for _ in range(TIMES):
                ask()
            seen = (faults(serving.pid) - before) / TIMES
            assert seen < PAGES / 2  # without it a message and its answer take five times its size anew

"""The echo over gRPC: a client, and a server of bare grpc.aio to hold a server's figures against.

    python benchmarks/tools/rpc.py PORT

answers ModelInfer with the sum of eight numbers: protobuf's messages, one coroutine, and nothing else.
"""

import asyncio
import sys
import time
from array import array
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import grpc
import uvloop

from benchmarks.tools.load import HOST, Load
from benchmarks.tools.workload import ECHO_SUM, ECHO_VALUES
from timebound.rpc.schema import message

METHOD = "/inference.GRPCInferenceService/ModelInfer"
Request = message("inference.ModelInferRequest")
Response = message("inference.ModelInferResponse")
_PATIENCE_S = 5.0


def question() -> bytes:
    """Eight numbers, as tritonclient sends them."""
    request = Request(model_name="echo", raw_input_contents=[array("d", ECHO_VALUES).tobytes()])
    request.inputs.add(name="values", datatype="FP64", shape=[1, len(ECHO_VALUES)])
    return bytes(request.SerializeToString())


def is_sum(body: bytes) -> bool:
    """Whether an answer is right."""
    answer = Response.FromString(body)
    return list(array("d", answer.raw_output_contents[0])) == [ECHO_SUM]


def answers_right(port: int) -> bool:
    """Whether a server on this machine answers."""
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        try:
            return is_sum(channel.unary_unary(METHOD)(question(), timeout=_PATIENCE_S))
        except grpc.RpcError:
            return False


def is_live(port: int) -> bool:
    """Whether a server on this machine is ready."""
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        ready = channel.unary_unary(f"{METHOD.rpartition('/')[0]}/ServerReady")
        try:
            return bool(ready(b"", timeout=_PATIENCE_S) == b"\x08\x01")
        except grpc.RpcError:
            return False


def measure(port: int, concurrency: int, seconds: float) -> Load:
    """Keep `concurrency` requests under way for that long."""
    return uvloop.run(_measure(port, concurrency, seconds))


async def _measure(port: int, concurrency: int, seconds: float) -> Load:
    body, times, errors = question(), [], 0
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        ask = channel.unary_unary(METHOD)
        await ask(body)
        end = time.perf_counter() + seconds

        async def keep_asking() -> None:
            nonlocal errors
            while (began := time.perf_counter()) < end:
                try:
                    is_right = is_sum(await ask(body, timeout=_PATIENCE_S))
                except grpc.aio.AioRpcError:
                    is_right = False
                errors += not is_right
                times.append(time.perf_counter() - began)

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(keep_asking() for _ in range(concurrency)))
        took = time.perf_counter() - began
    ordered = sorted(times)
    p99 = ordered[int(0.99 * (len(ordered) - 1))]
    used = (time.process_time() - cpu) / took
    return Load((len(times) - errors) / took, 1e3 * median(times), 1e3 * p99, errors, used)


def late_at(port: int, value: int, rate: float, seconds: float, deadline_s: float) -> tuple[int, int]:
    """Ask the slow model so often, each time with this deadline; how many answers were late, and how many missing."""
    request = Request(model_name="slow")
    made = request.inputs.add(name="value", datatype="INT64", shape=[1])
    made.contents.int64_contents.append(value)
    return uvloop.run(_late_at(port, request.SerializeToString(), rate, seconds, deadline_s))


async def _late_at(port: int, body: bytes, rate: float, seconds: float, deadline_s: float) -> tuple[int, int]:
    late = unanswered = 0
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        ask = channel.unary_unary(METHOD)
        await ask(body)

        async def once() -> None:
            nonlocal late, unanswered
            try:
                await ask(body, timeout=deadline_s)
            except grpc.aio.AioRpcError as error:
                late += error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
                unanswered += 1

        began, calls = time.perf_counter(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(began + number / rate - time.perf_counter())
            calls.append(asyncio.ensure_future(once()))
        await asyncio.gather(*calls)
    return late, unanswered


async def serve(port: int) -> None:
    """Answer until killed."""

    async def infer(request: Any, context: Any) -> Any:
        total = sum(array("d", request.raw_input_contents[0]))
        answer = Response(model_name=request.model_name, model_version="1", id=request.id)
        answer.outputs.add(name="sum", datatype="FP64", shape=[1])
        answer.raw_output_contents.append(array("d", [total]).tobytes())
        return answer

    handler = grpc.unary_unary_rpc_method_handler(
        infer, request_deserializer=Request.FromString, response_serializer=Response.SerializeToString
    )
    server = grpc.aio.server()
    service, method = METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))

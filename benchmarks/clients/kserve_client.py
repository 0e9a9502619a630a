"""Asks the files `twice` and `words` with KServe's own inference clients; runs where the package kserve is installed.

python kserve_client.py HTTP_PORT GRPC_PORT
"""

import asyncio
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

ROWS = np.array([[1, 2, 3], [4, 5, 6.5]], np.float32)
WORDS = np.array([[b"a"], ["über".encode()], [b""]], dtype=object)


def request(model: str = "twice", *, is_binary: bool = False) -> InferRequest:
    """Two rows of numbers, or three texts."""
    array, datatype = (WORDS, "BYTES") if model == "words" else (ROWS, "FP32")
    tensor = InferInput("x", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=is_binary)
    more = {"binary_data_output": True} if is_binary else {}
    return InferRequest(model, [tensor], request_id="r1", parameters=more)


def check_words(answer: np.ndarray) -> None:
    """They are what was sent, as texts or as bytes."""
    assert [one if isinstance(one, bytes) else str(one).encode() for one in answer.ravel()] == WORDS.ravel().tolist()


async def error_of(call: Awaitable[object], kind: type[Any]) -> Any:
    """What a call that must fail fails with."""
    try:
        await call
    except kind as error:
        return error
    raise AssertionError("a model that is not there answered")


async def by_rest(port: int) -> None:
    """Version 2 over HTTP, as JSON and in binary, and version 1."""
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    url = f"http://127.0.0.1:{port}"
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, "twice")
    for is_binary in (False, True):
        answer = await client.infer(url, request(is_binary=is_binary), model_name="twice")
        assert answer.id == "r1"
        np.testing.assert_array_equal(answer.outputs[0].as_numpy(), ROWS * 2)
        answer = await client.infer(url, request("words", is_binary=is_binary), model_name="words")
        check_words(answer.outputs[0].as_numpy())
    error = await error_of(client.infer(url, request(), model_name="nobody"), httpx.HTTPStatusError)
    assert error.response.status_code == 404
    assert "Request for unknown model: 'nobody'" in str(error), error
    first = InferenceRESTClient(RESTConfig(protocol="v1"))
    answer = await first.infer(url, {"instances": ROWS.tolist()}, model_name="twice")
    assert answer["predictions"] == (ROWS * 2).tolist(), answer


async def by_grpc(port: int) -> None:
    """The same over gRPC, with typed and with raw contents."""
    client = InferenceGRPCClient(f"127.0.0.1:{port}")
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("twice")
    for is_binary in (False, True):
        answer = await client.infer(request(is_binary=is_binary))
        np.testing.assert_array_equal(answer.outputs[0].as_numpy(), ROWS * 2)
        answer = await client.infer(request("words", is_binary=is_binary))
        check_words(answer.outputs[0].as_numpy())
    error = await error_of(client.infer(request("nobody")), grpc.RpcError)
    assert error.code() == grpc.StatusCode.NOT_FOUND, error
    await client.close()


if __name__ == "__main__":
    asyncio.run(by_rest(int(sys.argv[1])))
    asyncio.run(by_grpc(int(sys.argv[2])))
    print("kserve: all answers are right")

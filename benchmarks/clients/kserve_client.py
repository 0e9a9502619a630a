"""Asks the file `twice` with KServe's own inference clients; runs where the package kserve is installed.

python kserve_client.py HTTP_PORT GRPC_PORT
"""

import asyncio
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

ROWS = np.array([[1, 2, 3], [4, 5, 6.5]], np.float32)


def request() -> InferRequest:
    """Two rows."""
    tensor = InferInput("x", list(ROWS.shape), "FP32")
    tensor.set_data_from_numpy(ROWS, binary_data=False)
    return InferRequest("twice", [tensor], request_id="r1")


async def by_rest(port: int) -> None:
    """Version 2 over HTTP, as JSON."""
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    url = f"http://127.0.0.1:{port}"
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, "twice")
    answer = await client.infer(url, request(), model_name="twice")
    assert answer.id == "r1"
    np.testing.assert_array_equal(answer.outputs[0].as_numpy(), ROWS * 2)
    first = InferenceRESTClient(RESTConfig(protocol="v1"))
    answer = await first.infer(url, {"instances": ROWS.tolist()}, model_name="twice")
    assert answer["predictions"] == (ROWS * 2).tolist(), answer


async def by_grpc(port: int) -> None:
    """The same over gRPC, with typed and with raw contents."""
    client = InferenceGRPCClient(f"127.0.0.1:{port}")
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("twice")
    answer = await client.infer(request())
    np.testing.assert_array_equal(answer.outputs[0].as_numpy(), ROWS * 2)
    await client.close()


if __name__ == "__main__":
    asyncio.run(by_rest(int(sys.argv[1])))
    asyncio.run(by_grpc(int(sys.argv[2])))
    print("kserve: all answers are right")

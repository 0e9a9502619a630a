"""Triton through PyTriton: two instances of a function behind its dynamic batcher; `--tuned` bounds the queue."""

import argparse
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor, TimeoutAction
from pytriton.triton import Triton, TritonConfig

from benchmarks.peers.apps.work import MAX_BATCH, MAX_WAIT_S, WORKERS, Work
from benchmarks.tools.workload import decode


def instance() -> Any:
    """One function with sessions of its own."""
    work = Work()

    @batch
    def infer(uuid: Any, image: Any) -> Any:
        uuids = [item.item().decode() for item in uuid]
        answers = work.classify(uuids, [decode(item.item().decode()) for item in image])
        return {"answer": np.array(answers, dtype=np.int32)[:, None], "id": uuid}

    return infer


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tuned", action="store_true")
    options = parser.parse_args()
    policy = None
    if options.tuned:
        policy = QueuePolicy(
            timeout_action=TimeoutAction.REJECT, default_timeout_microseconds=100_000, max_queue_size=12
        )
    batcher = DynamicBatcher(max_queue_delay_microseconds=int(MAX_WAIT_S * 1e6), default_queue_policy=policy)
    triton = TritonConfig(http_port=options.port, http_address="127.0.0.1", allow_grpc=False, allow_metrics=False)
    with Triton(config=triton) as server:
        server.bind(
            model_name="ensemble",
            infer_func=[instance() for _ in range(WORKERS)],
            inputs=[Tensor(name="uuid", dtype=bytes, shape=(1,)), Tensor(name="image", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="answer", dtype=np.int32, shape=(1,)), Tensor(name="id", dtype=bytes, shape=(1,))],
            config=ModelConfig(max_batch_size=MAX_BATCH, batcher=batcher),
        )
        server.serve()

"""Ray Serve: two replicas that batch; `--tuned` bounds the queue and the time of a request."""

import argparse
import asyncio
import signal
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from benchmarks.peers.apps.work import MAX_BATCH, MAX_WAIT_S, WORKERS, Work
from benchmarks.tools.workload import decode


class Ensemble:
    """Each request is read and decoded by itself, then waits for company."""

    def __init__(self) -> None:
        self.work = Work()

    async def __call__(self, request: Request) -> Any:
        try:
            body = await request.json()
            uuid, picture = body["uuid"], decode(body["image"])
        except (KeyError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return {"uuid": uuid, "answer": await self.classify((uuid, picture))}

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=MAX_WAIT_S)
    async def classify(self, batch: list[Any]) -> list[int]:
        return self.work.classify([uuid for uuid, _ in batch], [picture for _, picture in batch])


async def stopped() -> None:
    """Wait for SIGTERM."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, event.set)
    await event.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tuned", action="store_true")
    options = parser.parse_args()
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="warning")
    http: dict[str, Any] = {"host": "127.0.0.1", "port": options.port}
    # As many under way as fill the replicas' batches twice.
    bounds: dict[str, Any] = {"max_ongoing_requests": 4 * MAX_BATCH}
    if options.tuned:
        http["request_timeout_s"] = 0.25
        bounds = {"max_ongoing_requests": MAX_BATCH, "max_queued_requests": MAX_BATCH}
    serve.start(http_options=http)
    deployment = serve.deployment(Ensemble).options(num_replicas=WORKERS, ray_actor_options={"num_cpus": 1}, **bounds)
    serve.run(deployment.bind(), route_prefix="/predictions/ensemble")
    asyncio.run(stopped())
    serve.shutdown()

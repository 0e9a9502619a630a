"""BentoML: two workers that batch as they see fit; the environment may give them a latency to keep."""

import os
from typing import Any

import bentoml
from pydantic import BaseModel

from benchmarks.peers.apps.work import MAX_BATCH, WORKERS, Work

# In milliseconds; a minute is the framework's own default.
LATENCY_ENV = "BENCH_BENTOML_LATENCY_MS"


class Item(BaseModel):
    """One request."""

    uuid: str
    image: str


@bentoml.service(workers=WORKERS)
class Ensemble:
    """A list of items in, a list of answers out: what may be batched takes lists."""

    def __init__(self) -> None:
        self.work = Work()

    @bentoml.api(
        batchable=True,
        max_batch_size=MAX_BATCH,
        max_latency_ms=int(os.environ.get(LATENCY_ENV, "60000")),
        route="/predictions/ensemble",
    )
    def predict(self, items: list[Item]) -> list[dict[str, Any]]:
        try:
            return self.work.answer([item.model_dump() for item in items])
        except ValueError as error:
            raise bentoml.exceptions.InvalidArgument(str(error)) from error

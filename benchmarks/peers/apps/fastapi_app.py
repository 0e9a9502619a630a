"""FastAPI with a bound written by hand: one thread works, a few wait, the rest is refused."""

from typing import Any

import anyio
from fastapi import FastAPI, HTTPException

from benchmarks.peers.apps.work import PLACES, Work
from benchmarks.serving.apps.fastapi_app import EnsembleRequest


def create_bounded() -> FastAPI:
    """The same answers as without the bound."""
    app = FastAPI()
    work = Work()
    thread = anyio.CapacityLimiter(1)
    under_way = 0

    @app.post("/predictions/ensemble")
    async def ensemble(request: EnsembleRequest) -> dict[str, Any]:
        nonlocal under_way
        if under_way >= PLACES:
            raise HTTPException(503, "too much to do")
        under_way += 1
        try:
            return (await anyio.to_thread.run_sync(work.answer, [request.model_dump()], limiter=thread))[0]
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        finally:
            under_way -= 1

    return app

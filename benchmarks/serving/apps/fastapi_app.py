"""The peer that most people would write: FastAPI, sync endpoints, sessions in each process."""

from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from benchmarks.tools.seen import Seen
from benchmarks.tools.workload import decode, mean_scores, model_paths, open_sessions


class EchoRequest(BaseModel):
    values: list[float]


class EnsembleRequest(BaseModel):
    uuid: str
    image: str


def create_echo() -> FastAPI:
    """Eight numbers in, their sum out."""
    app = FastAPI()

    @app.post("/predictions/echo")
    def echo(request: EchoRequest) -> dict[str, float]:
        return {"sum": sum(request.values)}

    return app


def create_ensemble() -> FastAPI:
    """A base64 PNG in, the ensemble's class out; the sessions are loaded when the process starts."""
    app = FastAPI()
    sessions = open_sessions(model_paths())
    seen = Seen()

    @app.post("/predictions/ensemble")
    def ensemble(request: EnsembleRequest) -> dict[str, Any]:
        try:
            batch = decode(request.image)[None]
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        seen.add(request.uuid)
        return {"uuid": request.uuid, "answer": int(mean_scores(sessions, batch)[0].argmax())}

    return app

"""TorchServe: a handler module with one function for batches; a broken item fails by itself."""

import json
from typing import Any

from benchmarks.peers.apps.work import Work
from benchmarks.tools.workload import decode

_work: Work | None = None


def handle(data: Any, context: Any) -> Any:
    """Called once without data to load, then with up to a batch of requests."""
    global _work  # noqa: PLW0603 - the module is the handler: it has no other place for its state
    if _work is None:
        _work = Work()
    if data is None:
        return None
    bodies = [_body(row) for row in data]
    pictures = {place: picture for place, body in enumerate(bodies) if (picture := _picture(body)) is not None}
    uuids = [bodies[place]["uuid"] for place in pictures]
    classes = _work.classify(uuids, list(pictures.values())) if pictures else []
    answers: list[dict[str, Any]] = [{"error": "image must be a base64 encoded picture"} for _ in bodies]
    for place, uuid, answer in zip(pictures, uuids, classes, strict=True):
        answers[place] = {"uuid": uuid, "answer": answer}
    for place in range(len(bodies)):
        if place not in pictures:
            context.set_response_status(code=400, phrase="Bad Request", idx=place)
    return answers


def _body(row: Any) -> dict[str, str]:
    body = row.get("body") or row.get("data")
    return body if isinstance(body, dict) else dict(json.loads(body))


def _picture(body: dict[str, str]) -> Any:
    try:
        return decode(body["image"])
    except (KeyError, ValueError):
        return None

"""Tells the brightest tone of a picture; a request may make its batch wait at a gate."""

import fcntl
from typing import Any

import timebound as tb


class Pictures(tb.Model):
    deadline = 50.0

    class Request(tb.Struct):
        image: str
        gate: str = ""

    # A white pixel.
    example = {  # noqa: RUF012 - read once, never changed
        "image": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsFXqnwAAAABJRU5ErkJggg=="
    }

    def prepare(self, request: Request) -> tuple[Any, str]:
        return tb.image.decode(request.image, mode="L"), request.gate

    def infer(self, batch: Any) -> Any:
        pictures, gates = batch
        for gate in filter(None, gates):
            with open(gate) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
        return [int(picture.max()) for picture in pictures]

    def finish(self, output: int, request: Request) -> dict[str, int]:
        return {"tone": output}

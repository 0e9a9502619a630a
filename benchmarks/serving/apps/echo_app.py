"""The echo model: eight numbers in, their sum out; nearly all the time it takes is the server's own."""

from typing import Any, ClassVar

import timebound as tb


class Echo(tb.Model):
    """Sums the values of each request."""

    name = "echo"
    deadline = 5.0  # far away: this measures overhead, not lateness
    example: ClassVar[Any] = {"values": [1.0, 2.0]}

    class Request(tb.Struct):
        values: list[float]

    def prepare(self, request: Any) -> Any:
        return sum(request.values)

    def infer(self, batch: Any) -> Any:
        return batch

    def finish(self, output: Any, request: Any) -> Any:
        return {"sum": float(output)}

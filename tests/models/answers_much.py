"""Answers with as many bytes as it is asked for."""

from typing import Any

import timebound as tb


class AnswersMuch(tb.Model):
    name = "much"
    deadline = 20.0
    example = {"size": 1}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        size: int

    def infer(self, batch: Any) -> Any:
        return [bytes(request.size) for request in batch]

"""What `Answer` says of a model's answers: their schema, and whether one is as it says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from timebound.errors import SetupError
from timebound.reply import Reply
from timebound.types import Outcome

_LONGEST_EXAMPLE = 4_000
"""Bytes; a longer answer is no help as an example."""
_SAYS_NOTHING = (Any, object, None, type(None), bytes, bytearray, Reply, inspect.Signature.empty)


def answer_schema(answer: Any, where: str) -> dict[str, Any] | None:
    """JSON Schema of a class's `Answer`; None without one. Raises `SetupError` for what JSON cannot describe."""
    if answer is None:
        return None
    try:
        return dict(msgspec.json.schema(answer))
    except (TypeError, NameError) as error:
        cure = "give a tb.Struct, a dataclass or a plain type"
        raise SetupError(f"{where}: Answer cannot be described: {error}; {cure}") from None


def returned_type(hint: Any) -> Any:
    """The `Answer` that a function's return annotation stands for; None if it says nothing about JSON."""
    try:
        if hint in _SAYS_NOTHING:
            return None
        msgspec.json.schema(hint)
    except (TypeError, NameError):  # such as a numpy array: it is answered, but not described
        return None
    return hint


def check_answer(answer: Any, outcome: Outcome, where: str) -> None:
    """Raise `SetupError` if what the example was answered is not what `Answer` says."""
    if answer is None or not is_json(outcome):
        return
    try:
        msgspec.json.decode(outcome.body, type=answer)
    except msgspec.ValidationError as error:
        told = str(error).replace("`", "'")
        raise SetupError(f"{where}: the example's answer is not what Answer says: {told}; fix one of the two") from None


def example_of(encode: Callable[[Any], Outcome], answer: Any) -> tuple[Any, str]:
    """An answer as the API document shows it, None if it is not JSON or too long to be of help; and its media type."""
    outcome = encode(answer)
    if not is_json(outcome) or len(outcome.body) > _LONGEST_EXAMPLE:
        return None, outcome.media
    return msgspec.json.decode(outcome.body), outcome.media


def is_json(outcome: Outcome) -> bool:
    """Whether its body is JSON."""
    kind = outcome.media.partition(";")[0].strip()
    return kind == "application/json" or kind.endswith("+json")

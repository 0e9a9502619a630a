"""What a tensor request asks besides its tensors, in any protocol: which outputs, by when, with which parameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from timebound.errors import RequestError
from timebound.tensors.given import Asks, Facts, Given, Infer, Output, wrong
from timebound.tensors.item import Wanted

MOST_ITEMS = 256
"""In one request: so many answers are put together within a millisecond."""
_TOP_PRIORITY = 100
"""The protocol's 1 is our 99, its 100 our 0."""
_OURS = ("timeout", "priority", "binary_data_output", "sequence_id", "sequence_start", "sequence_end")
_MOST_REPEATED = 4_096
"""Bytes of what is said once and goes along with every item of several."""


def filled(facts: Facts, asks: Asks, given: Sequence[Given]) -> dict[str, Any]:
    """What the request says besides its inputs, by name; a name like a field's is its value, for all items."""
    filled = {name: value for name, value in (asks.parameters or {}).items() if name not in _OURS}
    key, is_single = facts.key, bool(given) and given[0].shape[0] == 1
    if key is not None and asks.id and is_single and key not in filled and all(each.name != key for each in given):
        filled[key] = asks.id  # the model wants its requests named, and this is the name
    return filled


def check_names(facts: Facts, names: Sequence[str], filled: Collection[str]) -> None:
    if len(names) == len(facts.inputs) == 1 and names[0] == facts.inputs[0].name:
        return  # as most requests are
    known = {each.name for each in facts.inputs}
    for name in names:
        if name not in known:
            raise RequestError(
                f"unexpected input {name!r}; the model takes {_listed(facts)}", code="bad_input", field=name
            )
    if len(set(names)) != len(names):
        raise RequestError("an input comes twice", code="bad_input")
    for each in facts.inputs:
        if not each.is_optional and each.name not in names and (facts.is_raw or each.name not in filled):
            raise RequestError(
                f"input {each.name!r} is missing; the model takes {_listed(facts)}", code="bad_input", field=each.name
            )


def _listed(facts: Facts) -> str:
    return ", ".join(f"{each.name} ({each.datatype}{each.shape})" for each in facts.inputs)


def count_of(given: Sequence[Given]) -> int:
    if not given:
        raise RequestError("the request has no inputs", code="empty_body")
    count = given[0].shape[0]
    for each in given:
        if each.shape[0] != count:
            raise wrong(
                each.name, f"has {each.shape[0]} items, {given[0].name!r} has {count}; the first dimension is theirs"
            )
    if not 0 < count <= MOST_ITEMS:
        raise RequestError(f"the request has {count} items; send 1 to {MOST_ITEMS}", code="bad_input")
    return count


def read_parameters(cut: Infer, parameters: dict[str, Any]) -> None:
    timeout, priority = parameters.get("timeout"), parameters.get("priority")
    if timeout is not None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < 1e15:
            raise RequestError("parameters.timeout must be microseconds, such as 250000", code="bad_input")
        cut.timeout_s = timeout * 1e-6 or None
    if priority is not None:
        if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
            raise RequestError("parameters.priority must be a whole number; 1 goes first", code="bad_input")
        cut.priority = max(-_TOP_PRIORITY, _TOP_PRIORITY - priority) if priority else None
    if parameters.get("sequence_id"):
        raise RequestError("sequences are not supported; every request stands for itself", code="bad_input")
    if parameters.get("binary_data_output") is True:
        cut.is_binary = True


def wanted(facts: Facts, output: Output, is_binary: bool) -> Wanted:
    if facts.outputs and output.name not in facts.outputs:
        given = ", ".join(facts.outputs)
        raise RequestError(f"there is no output {output.name!r}; the model gives {given}", code="bad_input")
    parameters = output.parameters or {}
    if "shared_memory_region" in parameters:
        raise RequestError("outputs by shared memory are not supported; leave it out", code="bad_input")
    classes = parameters.get("classification", 0)
    if not isinstance(classes, int) or isinstance(classes, bool) or not 0 <= classes < 1 << 31:
        raise RequestError("classification must be a whole number, such as 3", code="bad_input")
    if classes and facts.is_raw:
        detail = (
            f"output {output.name!r} is the model's whole answer, which has no highest values; leave classification out"
        )
        raise RequestError(detail, code="bad_input")
    return Wanted(output.name, bool(parameters.get("binary_data", is_binary)), classes)


def check_numbers(more: dict[str, Any]) -> None:
    try:
        msgspec.msgpack.encode(more)
    except OverflowError:
        raise RequestError("a whole number in parameters has more than 64 bits", code="bad_input") from None


def check_repeated(cut: Infer, more: dict[str, Any]) -> None:
    if len(msgspec.json.encode((more, cut.wanted, cut.id))) > _MOST_REPEATED:
        raise RequestError(
            f"id, parameters and outputs are over {_MOST_REPEATED} bytes, and each of several items carries them; "
            "send the items one by one",
            code="bad_input",
        )

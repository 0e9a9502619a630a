"""From a tensor request's inputs to its items: each is packed for a worker by itself.

No number is read here: JSON lists are only cut, binary data likewise.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import attrgetter
from typing import Any

import msgspec

from timebound.body import read_json
from timebound.errors import RequestError
from timebound.store.fingerprint import of_parts, rewritten
from timebound.tensors.asked import (
    check_names,
    check_numbers,
    check_repeated,
    count_of,
    filled,
    read_parameters,
    wanted,
)
from timebound.tensors.datatypes import BYTES, FORMATS, SIZES
from timebound.tensors.given import BRACKET, Asks, Cut, Facts, Given, Infer, wrong
from timebound.tensors.item import Data, Head, Part, Wanted, pack
from timebound.tensors.values import as_binary

_LENGTH = struct.Struct("<I")

_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def cut(
    facts: Facts, asks: Asks, given: Sequence[Given], *, needs_print: bool = False, is_binary: bool = False
) -> Infer:
    """The items of a request; raises `RequestError` that names what is wrong with it.

    `is_binary` says how outputs go back of which the request does not say it.
    """
    infer = Infer([], asks.id or "", is_binary=is_binary)
    more = filled(facts, asks, given) if asks.parameters or asks.id else {}
    if more:
        check_numbers(more)
    check_names(facts, [each.name for each in given], more)
    count = count_of(given)
    if asks.parameters:
        read_parameters(infer, asks.parameters)
    if asks.outputs:
        infer.wanted = [wanted(facts, output, infer.is_binary) for output in asks.outputs]
    if count > 1:
        check_repeated(infer, more)
    if facts.is_raw:
        infer.items = [Cut(element) for element in _raw_bodies(given[0], count)]
        infer.more = more
        return infer
    _cut_items(infer, facts, given, count, more)
    if needs_print or (facts.key is not None and any(item.key is not None for item in infer.items)):
        _print_items(infer, facts, given, count, more)
    return infer


def _cut_items(cut: Infer, facts: Facts, given: Sequence[Given], count: int, more: dict[str, Any]) -> None:
    if count == 1:
        data = [each.data for each in given]
        if more or cut.wanted:
            body = pack(_head(cut, given, data, more), data)
        else:  # as most are
            kinds = tuple(
                [(each.name, each.datatype, tuple(each.shape[1:]), len(each.data), each.is_text) for each in given]
            )
            body = b"".join((_usual(kinds, cut.is_binary), *data))
        cut.items.append(Cut(body))
        columns = [[own] for own in data]
    else:
        columns = [_columns(each, count) for each in given]
        cut.items += map(Cut, _packed(cut, given, columns, more))
    if facts.key is None and facts.size_field is None:
        return
    if count == 1 and facts.key is not None and facts.key in more:
        cut.items[0].key = _name(more[facts.key])
    for each, column in zip(given, columns, strict=True):
        if each.name == facts.key:
            for item, data_ in zip(cut.items, column, strict=True):
                item.key = _text(each, data_)
        if each.name == facts.size_field:
            for item, data_ in zip(cut.items, column, strict=True):
                item.size = _size(each, data_)


def _packed(cut: Infer, given: Sequence[Given], columns: Sequence[Sequence[Data]], more: dict[str, Any]) -> list[bytes]:
    """The bodies of several items. Those whose data are as long have the same head: it is made once."""
    heads: dict[tuple[int, ...], bytes] = {}
    bodies = []
    for data in zip(*columns, strict=True):
        sizes = tuple(map(len, data))
        if sizes not in heads:
            heads[sizes] = pack(_head(cut, given, data, more), ())
        bodies.append(b"".join((heads[sizes], *data)))
    return bodies


def _head(cut: Infer, given: Sequence[Given], data: Sequence[Data], more: dict[str, Any]) -> Head:
    parts = [
        Part(each.name, each.datatype, each.shape[1:], len(own), each.is_text)
        for each, own in zip(given, data, strict=True)
    ]
    return Head(parts, cut.wanted, cut.is_binary, more)


@lru_cache(512)
def _usual(kinds: Sequence[tuple[str, str, Sequence[int], int, bool]], is_binary: bool) -> bytes:
    """How an item of such tensors begins if nothing is said besides: requests of one kind have the same."""
    parts = [Part(name, datatype, list(shape), size, is_text) for name, datatype, shape, size, is_text in kinds]
    return pack(Head(parts, is_binary=is_binary), ())


def _print_items(cut: Infer, facts: Facts, given: Sequence[Given], count: int, more: dict[str, Any]) -> None:
    """By values: the order of tensors and parameters makes no difference, nor how values and answers are written."""
    ignore = frozenset(facts.key_ignore)
    kept = sorted([each for each in given if each.name not in ignore], key=attrgetter("name"))
    said = {name: more[name] for name in sorted(more) if name not in ignore}
    asked = [Wanted(each.name, False, each.classes) for each in cut.wanted]
    if {each.name for each in asked} == set(facts.outputs) and not any(each.classes for each in asked):
        asked = []  # all of them, as without a word
    heads: dict[tuple[tuple[int, bool], ...], bytes] = {}
    columns = [_columns(each, count) for each in kept]
    for item, own in zip(cut.items, zip(*columns, strict=True) if kept else [()] * count, strict=True):
        parts, data = [], []
        for each, came in zip(kept, own, strict=True):
            part, value = _as_value(each, came)
            parts.append(part)
            data.append(value)
        kinds = tuple([(part.size, part.is_text) for part in parts])
        head = heads.get(kinds)
        if head is None:
            head = heads[kinds] = pack(Head(parts, asked, False, said), ())
        item.fingerprint = of_parts(head, *data)


def _as_value(given: Given, data: Data) -> tuple[Part, Data]:
    """An item's tensor as its fingerprint has it: in binary, if there is such a tensor."""
    shape, is_text = given.shape[1:], given.is_text
    if is_text:
        binary = as_binary(given.datatype, shape, data)
        data, is_text = (rewritten(data), True) if binary is None else (binary, False)
    return Part(given.name, given.datatype, shape, len(data), is_text), data


def _columns(given: Given, count: int) -> list[Data]:
    """An input's data, cut into that of each item."""
    if count == 1:
        return [given.data]
    if given.is_text:
        return _cut_text(given, count)
    if given.datatype == BYTES:
        return _cut_elements(given, count)
    step = len(given.data) // count
    return [given.data[at : at + step] for at in range(0, step * count, step)] if step else [b""] * count


def _cut_text(given: Given, count: int) -> list[Data]:
    values = read_json(_decode_list, given.data)
    if len(values) == count and len(given.shape) > 1 and memoryview(values[0])[0] == BRACKET:
        return [memoryview(value) for value in values]
    each, rest = divmod(len(values), count)
    if len(values) != prod(given.shape) or rest:
        raise wrong(given.name, f"has {len(values)} values; {given.datatype}{given.shape} has {prod(given.shape)}")
    parts = (values[at : at + each] for at in range(0, each * count, each)) if each else ([] for _ in range(count))
    return [b"[" + b",".join(map(bytes, part)) + b"]" for part in parts]


def _cut_elements(given: Given, count: int) -> list[Data]:
    view, at, parts = memoryview(given.data), 0, []
    per_item = prod(given.shape[1:])
    for _ in range(count):
        start = at
        for _ in range(per_item):
            at = _next_element(given, view, at)
        parts.append(view[start:at])
    if at != len(view):
        raise wrong(given.name, f"has {len(view) - at} bytes more than its elements")
    return list(parts)


def _next_element(given: Given, view: memoryview, at: int) -> int:
    """Where the element after the one here begins."""
    if at + 4 > len(view):
        raise wrong(given.name, "has elements that are cut short")
    end: int = at + 4 + _LENGTH.unpack(view[at : at + 4])[0]
    if end > len(view):
        raise wrong(given.name, "has an element that is longer than what is left of its data")
    return end


def _raw_bodies(given: Given, count: int) -> list[bytes]:
    """The elements of a model's only input: each is a whole body."""
    if given.datatype != BYTES or prod(given.shape) != count:
        raise wrong(given.name, f"is {BYTES} with one element for each item")
    bodies = [_element(given, data) for data in _columns(given, count)]
    if not all(bodies):
        raise RequestError("an element is empty", code="empty_body", field=given.name)
    return bodies


def _element(given: Given, data: Data) -> bytes:
    """The first BYTES element of an item."""
    if not given.is_text:
        end = _next_element(given, memoryview(data), 0)
        if end != len(data) and prod(given.shape[1:]) == 1:
            raise wrong(given.name, f"has {len(data) - end} bytes more than its elements")
        return bytes(data[4:end])
    value = _first(read_json(msgspec.json.decode, data))
    if not isinstance(value, str):
        raise wrong(given.name, "has data that is no list of texts")
    return value.encode("utf-8", "surrogatepass")


def _first(value: Any) -> Any:
    while isinstance(value, list):
        value = value[0] if value else None
    return value


def _name(value: Any) -> str | None:
    """A key that came as a parameter; what is no text or number names nothing."""
    return None if value is None or isinstance(value, dict | list) else str(value)


def _text(given: Given, data: Data) -> str | None:
    """What an item's key is, from the input that carries it."""
    if given.datatype == BYTES:
        return _element(given, data).decode("utf-8", "replace") if prod(given.shape[1:]) else None
    value = _value(given, data)
    return None if value is None else str(value)


def _value(given: Given, data: Data) -> Any:
    """The first number of an item."""
    if given.is_text:
        return _first(read_json(msgspec.json.decode, data))
    size = SIZES[given.datatype]
    if given.datatype == "BF16" or len(data) < size:
        return None
    return struct.unpack(f"<{FORMATS[given.datatype]}", data[:size])[0]


def _size(given: Given, data: Data) -> float:
    """How large an item is: the length of its text or list, or a number itself."""
    inner = given.shape[1:]
    if prod(inner) > 1:
        return max(1.0, float(inner[0]))
    if given.datatype == BYTES:
        return max(1.0, float(len(_element(given, data).decode("utf-8", "replace")))) if prod(inner) else 1.0
    value = _value(given, data)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - NaN
    return float(max(1, min(value, 10**15))) if is_number else 1.0

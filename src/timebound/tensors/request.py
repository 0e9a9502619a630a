"""An inference request of the Open Inference Protocol, cut into items: each is packed for a worker by itself.

It runs in the gateway for small bodies, and for others in the process of `reading.py`, which imports this file by its
name. No number is read here: JSON lists are only cut, binary data likewise.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Sequence
from math import prod
from typing import Annotated, Any

import msgspec

from timebound.body import read_json
from timebound.errors import RequestError
from timebound.store.fingerprint import of_bytes
from timebound.tensors.datatypes import BYTES, FORMATS, SIZES
from timebound.tensors.item import Data, Head, Part, Wanted, pack
from timebound.tensors.packing import unpacked
from timebound.types import Tensor

MOST_ITEMS = 256
"""In one request: so many answers are put together within a millisecond."""
_MOST_DIMENSIONS = 32
_FEW_ITEMS, _FEW_ELEMENTS = 64, 1_000
_BESIDES = 8
"""Commas at least that a request with many values has besides those between them."""
_TOP_PRIORITY = 100
"""The protocol's 1 is our 99, its 100 our 0."""
_LENGTH = struct.Struct("<I")
_OURS = ("timeout", "priority", "binary_data_output", "sequence_id", "sequence_start", "sequence_end")
_BARE_WORDS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|-?\b(?:NaN|Infinity)\b', re.S)
"""Texts, and the words that Python and others write for numbers which JSON has none for. Nothing is looked at twice: a
text without an end goes on to the end."""
_MOST_REPEATED = 4_096
"""Bytes of what is said once and goes along with every item of several."""


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What must be known of a model to cut its requests."""

    inputs: list[Tensor]
    outputs: list[str]
    is_raw: bool
    key: str | None = None
    size_field: str | None = None
    key_ignore: list[str] = []


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What the headers of a request say of its body."""

    head_size: int | None = None
    """`Inference-Header-Content-Length`; None without one."""
    encoding: str = ""
    most: int = 0
    """Bytes that it may have when it is unpacked."""
    needs_print: bool = False


class Cut(msgspec.Struct, array_like=True, gc=False):
    """One item."""

    body: bytes
    key: str | None = None
    size: float = 1.0
    fingerprint: bytes = b""


class Infer(msgspec.Struct, array_like=True):
    """A request, cut."""

    items: list[Cut]
    id: str = ""
    timeout_s: float | None = None
    priority: int | None = None
    wanted: list[Wanted] = []
    is_binary: bool = False


_Length = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class _Input(msgspec.Struct):
    name: str
    shape: Annotated[list[_Length], msgspec.Meta(min_length=1, max_length=_MOST_DIMENSIONS)]
    datatype: str
    data: msgspec.Raw = msgspec.Raw()
    parameters: dict[str, Any] | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    outputs: list[_Output] | None = None
    id: str | None = None
    parameters: dict[str, Any] | None = None


class _Given(msgspec.Struct, gc=False):
    """An input with its data, of all items."""

    name: str
    datatype: str
    shape: list[int]
    data: Data
    is_text: bool


_decode = msgspec.json.Decoder(_Request).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read(facts: Facts, told: Told, body: bytes) -> Infer:
    """The items of a request; raises `RequestError` that names what is wrong with it."""
    if told.encoding:
        body = unpacked(body, told.encoding, told.most)
    if not body:
        raise RequestError("the body is empty", code="empty_body")
    if told.head_size == 0:
        request, given = _Request([]), [_whole_body(facts, body)]
    else:
        request, given = _parts(told.head_size, body)
    cut = Infer([], request.id or "")
    more = _filled(facts, request, given)
    _check_numbers(more)
    _check_names(facts, [each.name for each in given], more)
    count = _count(given)
    if request.parameters:
        _read_parameters(cut, request.parameters)
    if request.outputs:
        cut.wanted = [_wanted(facts, output, cut.is_binary) for output in request.outputs]
    if count > 1:
        _check_repeated(cut, more)
    if facts.is_raw:
        cut.items = [Cut(element) for element in _raw_bodies(given[0], count)]
        return cut
    _cut_items(cut, facts, given, count, more)
    if told.needs_print or (facts.key is not None and any(item.key is not None for item in cut.items)):
        _print_items(cut, facts, given, count, more)
    return cut


def _check_numbers(more: dict[str, Any]) -> None:
    try:
        msgspec.msgpack.encode(more)
    except OverflowError:
        raise RequestError("a whole number in parameters has more than 64 bits", code="bad_input") from None


def _check_repeated(cut: Infer, more: dict[str, Any]) -> None:
    if len(msgspec.json.encode((more, cut.wanted, cut.id))) > _MOST_REPEATED:
        raise RequestError(
            f"id, parameters and outputs are over {_MOST_REPEATED} bytes, and each of several items carries them; "
            "send the items one by one",
            code="bad_input",
        )


def is_laborious(head: bytes) -> bool:
    """Whether the JSON of a request announces so many items or BYTES elements that to cut them takes long."""
    try:
        inputs = _decode(head).inputs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # it will be refused
    return any(
        each.shape[0] > _FEW_ITEMS
        or (each.datatype == BYTES and each.shape[0] > 1 and prod(each.shape) > _FEW_ELEMENTS)
        for each in inputs
    )


def has_many_values(head: bytes) -> bool:
    """Whether the JSON of a request has values of so many items that to cut them takes long."""
    if head.count(b",") <= MOST_ITEMS + _BESIDES:
        return False
    try:
        inputs = _decode(head).inputs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # it will be refused
    return sum(each.shape[0] for each in inputs) > MOST_ITEMS


# ---------------------------------------------------------------------- from bytes to inputs


def _parts(head_size: int | None, body: bytes) -> tuple[_Request, list[_Given]]:
    """The JSON of a request, and its inputs with their data: from the JSON, or from what follows it."""
    if head_size is not None and not 0 < head_size <= len(body):
        raise RequestError(
            f"Inference-Header-Content-Length is {head_size}, the body has {len(body)} bytes", code="bad_header"
        )
    end = len(body) if head_size is None else head_size
    text = body if end == len(body) else body[:end]
    request = _decoded(text)
    view, at, given = memoryview(body), end, []
    for each in request.inputs:
        parameters = each.parameters or {}
        if "shared_memory_region" in parameters:
            raise _wrong(each.name, "comes by shared memory, which is not supported; send its data")
        size, data = parameters.get("binary_data_size"), memoryview(each.data)
        has_data = len(data) > 0 and data[0] != _NULL
        if size is None:
            if not has_data:
                raise _wrong(each.name, "has neither data nor binary_data_size")
            given.append(_Given(each.name, each.datatype, each.shape, data, True))
            continue
        if has_data:
            raise _wrong(each.name, "has both data and binary_data_size; send one of them")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise _wrong(each.name, "has a binary_data_size that is no whole number")
        if at + size > len(body):
            raise _wrong(
                each.name, f"has a binary_data_size of {size}, and {len(body) - at} bytes are left of the body"
            )
        given.append(_Given(each.name, each.datatype, each.shape, view[at : at + size], False))
        at += size
    if at != len(body):
        raise RequestError(f"the body has {len(body) - at} bytes more than its inputs say", code="bad_input")
    for one in given:
        _check_size(one)
    return request, given


def _decoded(text: bytes) -> _Request:
    try:
        request: _Request = read_json(_decode, text)
    except RequestError as error:
        if error.code != "malformed_json" or (b"NaN" not in text and b"Infinity" not in text):
            raise
        request = read_json(_decode, _BARE_WORDS.sub(_quoted, text))
    return request


def _quoted(word: re.Match[bytes]) -> bytes:
    return word[0] if word[0].startswith(b'"') else b'"%b"' % word[0]


def _check_size(given: _Given) -> None:
    if given.datatype != BYTES and given.datatype not in SIZES:
        raise _wrong(given.name, f"has datatype {given.datatype!r}; known are {', '.join(FORMATS)} and {BYTES}")
    if given.is_text:
        if given.data[0] != _BRACKET:
            raise _wrong(given.name, "has data that is no list")
        return
    count, size = prod(given.shape), len(given.data)
    if given.datatype == BYTES and 4 * count > size:
        raise _wrong(given.name, f"has {size} bytes, too few for {count} elements with their lengths")
    if given.datatype != BYTES and size != (needed := count * SIZES[given.datatype]):
        raise _wrong(given.name, f"has {size} bytes; {given.datatype}{given.shape} has {needed}")


_BRACKET, _NULL = ord("["), ord("n")


def _whole_body(facts: Facts, body: bytes) -> _Given:
    """The one input of a model whose request is nothing but its data."""
    needed = [each for each in facts.inputs if not each.is_optional] or facts.inputs
    if len(needed) != 1:
        raise RequestError("Inference-Header-Content-Length: 0 is for models with one input", code="bad_header")
    spec = needed[0]
    if spec.datatype == BYTES:
        return _Given(spec.name, BYTES, [1] * max(1, len(spec.shape)), _LENGTH.pack(len(body)) + body, False)
    free = [place for place, size in enumerate(spec.shape) if size < 0]
    fixed = SIZES[spec.datatype] * prod(size for size in spec.shape if size >= 0)
    if len(free) > 2 or not fixed or len(body) % fixed:
        raise _wrong(spec.name, f"has {len(body)} bytes, which do not make {spec.datatype}{spec.shape}")
    shape = [1 if place != free[-1] else len(body) // fixed for place in free] if free else []
    sizes = iter(shape)
    return _Given(spec.name, spec.datatype, [next(sizes) if s < 0 else s for s in spec.shape], body, False)


# ---------------------------------------------------------------------- what is asked


def _filled(facts: Facts, request: _Request, given: Sequence[_Given]) -> dict[str, Any]:
    """What the request says besides its inputs, by name; a name like a field's is its value, for all items."""
    filled = {name: value for name, value in (request.parameters or {}).items() if name not in _OURS}
    key, is_single = facts.key, bool(given) and given[0].shape[0] == 1
    if key is not None and request.id and is_single and key not in filled and all(each.name != key for each in given):
        filled[key] = request.id  # the model wants its requests named, and this is the name
    return filled


def _check_names(facts: Facts, names: Sequence[str], filled: Collection[str]) -> None:
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


def _count(given: Sequence[_Given]) -> int:
    if not given:
        raise RequestError("the request has no inputs", code="empty_body")
    count = given[0].shape[0]
    for each in given:
        if each.shape[0] != count:
            raise _wrong(
                each.name, f"has {each.shape[0]} items, {given[0].name!r} has {count}; the first dimension is theirs"
            )
    if not 0 < count <= MOST_ITEMS:
        raise RequestError(f"the request has {count} items; send 1 to {MOST_ITEMS}", code="bad_input")
    return count


def _read_parameters(cut: Infer, parameters: dict[str, Any]) -> None:
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
    cut.is_binary = parameters.get("binary_data_output") is True


def _wanted(facts: Facts, output: _Output, is_binary: bool) -> Wanted:
    if facts.outputs and output.name not in facts.outputs:
        given = ", ".join(facts.outputs)
        raise RequestError(f"there is no output {output.name!r}; the model gives {given}", code="bad_input")
    parameters = output.parameters or {}
    if "shared_memory_region" in parameters:
        raise RequestError("outputs by shared memory are not supported; leave it out", code="bad_input")
    classes = parameters.get("classification", 0)
    if not isinstance(classes, int) or isinstance(classes, bool) or not 0 <= classes < 1 << 31:
        raise RequestError("classification must be a whole number, such as 3", code="bad_input")
    return Wanted(output.name, bool(parameters.get("binary_data", is_binary)), classes)


# ---------------------------------------------------------------------- from inputs to items


def _cut_items(cut: Infer, facts: Facts, given: Sequence[_Given], count: int, more: dict[str, Any]) -> None:
    if count == 1:
        data = [each.data for each in given]
        cut.items.append(Cut(pack(_head(cut, given, data, more), data)))
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


def _packed(
    cut: Infer, given: Sequence[_Given], columns: Sequence[Sequence[Data]], more: dict[str, Any]
) -> list[bytes]:
    """The bodies of several items. Those whose data are as long have the same head: it is made once."""
    heads: dict[tuple[int, ...], bytes] = {}
    bodies = []
    for data in zip(*columns, strict=True):
        sizes = tuple(map(len, data))
        if sizes not in heads:
            heads[sizes] = pack(_head(cut, given, data, more), ())
        bodies.append(b"".join((heads[sizes], *data)))
    return bodies


def _head(cut: Infer, given: Sequence[_Given], data: Sequence[Data], more: dict[str, Any]) -> Head:
    parts = [
        Part(each.name, each.datatype, each.shape[1:], len(own), each.is_text)
        for each, own in zip(given, data, strict=True)
    ]
    return Head(parts, cut.wanted, cut.is_binary, more)


def _print_items(cut: Infer, facts: Facts, given: Sequence[_Given], count: int, more: dict[str, Any]) -> None:
    ignore = frozenset(facts.key_ignore)
    if not ignore.isdisjoint([*more, *(each.name for each in given)]):
        kept = [each for each in given if each.name not in ignore]
        more = {name: value for name, value in more.items() if name not in ignore}
        columns = [_columns(each, count) for each in kept]
        bodies = _packed(cut, kept, columns, more) if kept else [pack(_head(cut, (), (), more), ())] * count
        for item, body in zip(cut.items, bodies, strict=True):
            item.fingerprint = of_bytes(body)
        return
    for item in cut.items:
        item.fingerprint = of_bytes(item.body)


def _columns(given: _Given, count: int) -> list[Data]:
    """An input's data, cut into that of each item."""
    if count == 1:
        return [given.data]
    if given.is_text:
        return _cut_text(given, count)
    if given.datatype == BYTES:
        return _cut_elements(given, count)
    step = len(given.data) // count
    return [given.data[at : at + step] for at in range(0, step * count, step)] if step else [b""] * count


def _cut_text(given: _Given, count: int) -> list[Data]:
    values = read_json(_decode_list, given.data)
    if len(values) == count and len(given.shape) > 1 and memoryview(values[0])[0] == _BRACKET:
        return [memoryview(value) for value in values]
    each, rest = divmod(len(values), count)
    if len(values) != prod(given.shape) or rest:
        raise _wrong(given.name, f"has {len(values)} values; {given.datatype}{given.shape} has {prod(given.shape)}")
    parts = (values[at : at + each] for at in range(0, each * count, each)) if each else ([] for _ in range(count))
    return [b"[" + b",".join(map(bytes, part)) + b"]" for part in parts]


def _cut_elements(given: _Given, count: int) -> list[Data]:
    view, at, parts = memoryview(given.data), 0, []
    per_item = prod(given.shape[1:])
    for _ in range(count):
        start = at
        for _ in range(per_item):
            at = _next_element(given, view, at)
        parts.append(view[start:at])
    if at != len(view):
        raise _wrong(given.name, f"has {len(view) - at} bytes more than its elements")
    return list(parts)


def _next_element(given: _Given, view: memoryview, at: int) -> int:
    """Where the element after the one here begins."""
    if at + 4 > len(view):
        raise _wrong(given.name, "has elements that are cut short")
    end: int = at + 4 + _LENGTH.unpack(view[at : at + 4])[0]
    if end > len(view):
        raise _wrong(given.name, "has an element that is longer than what is left of its data")
    return end


def _raw_bodies(given: _Given, count: int) -> list[bytes]:
    """The elements of a model's only input: each is a whole body."""
    if given.datatype != BYTES or prod(given.shape) != count:
        raise _wrong(given.name, f"is {BYTES} with one element for each item")
    bodies = [_element(given, data) for data in _columns(given, count)]
    if not all(bodies):
        raise RequestError("an element is empty", code="empty_body", field=given.name)
    return bodies


def _element(given: _Given, data: Data) -> bytes:
    """The first BYTES element of an item."""
    if not given.is_text:
        end = _next_element(given, memoryview(data), 0)
        if end != len(data) and prod(given.shape[1:]) == 1:
            raise _wrong(given.name, f"has {len(data) - end} bytes more than its elements")
        return bytes(data[4:end])
    value = _first(read_json(msgspec.json.decode, data))
    if not isinstance(value, str):
        raise _wrong(given.name, "has data that is no list of texts")
    return value.encode("utf-8", "surrogatepass")


def _first(value: Any) -> Any:
    while isinstance(value, list):
        value = value[0] if value else None
    return value


def _name(value: Any) -> str | None:
    """A key that came as a parameter; what is no text or number names nothing."""
    return None if value is None or isinstance(value, dict | list) else str(value)


def _text(given: _Given, data: Data) -> str | None:
    """What an item's key is, from the input that carries it."""
    if given.datatype == BYTES:
        return _element(given, data).decode("utf-8", "replace") if prod(given.shape[1:]) else None
    value = _value(given, data)
    return None if value is None else str(value)


def _value(given: _Given, data: Data) -> Any:
    """The first number of an item."""
    if given.is_text:
        return _first(read_json(msgspec.json.decode, data))
    size = SIZES[given.datatype]
    if given.datatype == "BF16" or len(data) < size:
        return None
    return struct.unpack(f"<{FORMATS[given.datatype]}", data[:size])[0]


def _size(given: _Given, data: Data) -> float:
    """How large an item is: the length of its text or list, or a number itself."""
    inner = given.shape[1:]
    if prod(inner) > 1:
        return max(1.0, float(inner[0]))
    if given.datatype == BYTES:
        return max(1.0, float(len(_element(given, data).decode("utf-8", "replace")))) if prod(inner) else 1.0
    value = _value(given, data)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - NaN
    return float(max(1, min(value, 10**15))) if is_number else 1.0


def _wrong(name: str, what: str) -> RequestError:
    return RequestError(f"input {name!r} {what}", code="bad_input", field=name)


# ---------------------------------------------------------------------- for the process that reads heavy bodies

_told = msgspec.msgpack.Decoder(Told).decode


class Reader:
    """Cuts the bodies of one model elsewhere."""

    def __init__(self, facts: bytes) -> None:
        self._facts = msgspec.msgpack.decode(facts, type=Facts)

    def __call__(self, told: bytes, body: bytes) -> bytes:
        """What `Infer` says, as msgpack."""
        return msgspec.msgpack.encode(read(self._facts, _told(told), body))


open_reader = Reader

"""The messages and services of `protos/`, made from their text in a pool of their own.

No generated code, and nothing in protobuf's default pool: clients such as tritonclient and kserve bring the same names,
and two of a name in one pool end the process. The text is the part of the language that `protos/` uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

FILES = Path(__file__).parent / "protos"
_TOKENS = re.compile(r'//[^\n]*|[A-Za-z_][\w.]*|\d+|"[^"]*"|[{}()<>=;,]')
_SCALARS = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}


def file_of(name: str, text: str) -> FileDescriptorProto:
    """A file's descriptor, from its text."""
    words = _Words(text)
    file = FileDescriptorProto(name=name, syntax="proto3")
    while word := words.next():
        if word == "syntax":
            words.skip("=", '"proto3"', ";")
        elif word == "package":
            file.package = words.next()
            words.skip(";")
        elif word == "enum":
            _enum(words, file.enum_type.add())
        elif word == "service":
            _service(words, file)
        else:
            _message(words, file.message_type.add())
    return file


class _Words:
    """The words of a text, one after the other; nothing behind its end."""

    def __init__(self, text: str) -> None:
        self._words = (word for word in _TOKENS.findall(text) if not word.startswith("//"))

    def next(self) -> str:
        return next(self._words, "")

    def skip(self, *signs: str) -> None:
        for sign in signs:
            if (word := self.next()) != sign:
                raise ValueError(f"{sign} is missing before {word}")

    def until(self, end: str) -> Iterator[str]:
        """The words up to this one."""
        while (word := self.next()) != end:
            yield word


def _message(words: _Words, message: DescriptorProto) -> None:
    message.name = words.next()
    words.skip("{")
    for word in words.until("}"):
        if word == "message":
            _message(words, message.nested_type.add())
        elif word == "enum":
            _enum(words, message.enum_type.add())
        elif word == "oneof":
            message.oneof_decl.add(name=words.next())
            words.skip("{")
            for kind in words.until("}"):
                _field(words, kind, message).oneof_index = len(message.oneof_decl) - 1
        elif word == "map":
            _map(words, message)
        elif word == "repeated":
            _field(words, words.next(), message).label = FieldDescriptorProto.LABEL_REPEATED
        else:
            _field(words, word, message)


def _field(words: _Words, kind: str, message: DescriptorProto) -> FieldDescriptorProto:
    field = message.field.add(name=words.next(), label=FieldDescriptorProto.LABEL_OPTIONAL)
    _set_kind(field, kind)
    field.number = _number(words)
    return field


def _number(words: _Words) -> int:
    words.skip("=")
    number = int(words.next())
    words.skip(";")
    return number


def _set_kind(field: FieldDescriptorProto, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind


def _map(words: _Words, message: DescriptorProto) -> None:
    """A map is a list of entries to protobuf, each a message of its own."""
    words.skip("<")
    key = words.next()
    words.skip(",")
    value = words.next()
    words.skip(">")
    name = words.next()
    entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
    entry.options.map_entry = True
    for number, (part, kind) in enumerate((("key", key), ("value", value)), 1):
        _set_kind(entry.field.add(name=part, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL), kind)
    field = message.field.add(name=name, type_name=entry.name, number=_number(words))
    field.label = FieldDescriptorProto.LABEL_REPEATED


def _enum(words: _Words, enum: EnumDescriptorProto) -> None:
    enum.name = words.next()
    words.skip("{")
    for name in words.until("}"):
        enum.value.add(name=name, number=_number(words))


def _service(words: _Words, file: FileDescriptorProto) -> None:
    service = file.service.add(name=words.next())
    words.skip("{")
    for _ in words.until("}"):
        method = service.method.add(name=words.next())
        method.input_type, method.client_streaming = _side(words)
        words.skip("returns")
        method.output_type, method.server_streaming = _side(words)
        words.skip(";")


def _side(words: _Words) -> tuple[str, bool]:
    words.skip("(")
    kind = words.next()
    is_stream = kind == "stream"
    if is_stream:
        kind = words.next()
    words.skip(")")
    return kind, is_stream


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for name in NAMES:
        pool.AddSerializedFile(file_of(name, (FILES / name).read_text()).SerializeToString())
    return pool


NAMES = sorted(file.name for file in FILES.glob("*.proto"))
POOL = _pool()


def message(name: str) -> Any:
    """The class of a message, by its full name."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))

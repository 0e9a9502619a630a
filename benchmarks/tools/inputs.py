"""Bad input by kind: bytes for an HTTP connection, and frames for the wire to workers; the same for the same seed."""

import base64
import json
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from timebound.types import Outcome, Report, Timing
from timebound.workers import messages, wire

PATHS = ("/order", "/predictions/order", "/predictions/anything", "/predictions/picture", "/predictions/bytes")
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")
BODIES: tuple[Any, ...] = (
    {"id": "a", "count": 1},
    {"any": [1, {"a": None}]},
    {"image": base64.b64encode(PNG).decode()},
)

_NUMBERS = ("1e999", "-0", "1" * 400, "NaN", "Infinity", "0x10", "1e-999", "9" * 20, "-" + "9" * 40, "1.", ".5", "01")
_TEXTS = (
    "",
    "\x00",
    "\ud800",
    "é",
    "😀" * 50,
    "x" * 300,
    "x" * 40_000,
    "\u2028",
    "../../etc/passwd",
    "%00",
    "{}",
    "\\",
)
_HEADERS = (
    "Timebound-Timeout-Ms", "grpc-timeout", "X-Request-Timeout-Seconds", "X-Envoy-Expected-Rq-Timeout-Ms",
    "Timebound-Priority", "Timebound-Details", "Idempotency-Key", "X-Request-Id", "Content-Type", "Content-Encoding",
    "Content-Length", "Transfer-Encoding", "Expect", "Connection", "Upgrade", "Host", "Authorization", "X-API-Key",
    "Origin", "Accept", "Range", "TE", "Trailer", "Cookie", "Forwarded", "X-Forwarded-For",
)  # fmt: skip
_VALUES = (
    b"", b"0", b"-1", b"1", b"250", b"nan", b"inf", b"1e999", b"1e-320", b"99999999999999999999", b"chunked", b"gzip",
    b"identity", b"100-continue", b"close", b"upgrade, h2c", b"websocket", b"application/json", b"text/plain",
    b"multipart/form-data", b"votes", b"\xff\xfe", b"a" * 300, b"a" * 9000, b"1,2", b" 5 ", b"5x", b"0x10", b"1_0",
    b"\xd9\xa3", b"99999999H", b"1n", b"Bearer x", b"bytes=0-", b"*", b"null", b"=?utf-8?q?a?=", b"\t", b"a\tb",
)  # fmt: skip
_METHODS = (
    "GET",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "BREW",
    "post",
    "PRI",
    "P",
    "M-SEARCH",
)
_TARGETS = (
    "*", "//", "/.", "/..", "/%", "/%00", "/%ff", "/%2e%2e/%2e%2e", "/order/", "/order?x=1", "/order#x", "/ORDER",
    "http://127.0.0.1/order", "http://[::1", "/v1/results", "/v1/results/order/%00", "/v1/results/" + "a" * 3000,
    "/v1/results/order/a%2fb/c", "/v1/models/x/samples", "/v1/models/%f0%9f/samples", "/ui/../../server.py",
    "/ui/%2e%2e/server.py", "/ui//etc/passwd", "/ui/app.js/", "/predictions/", "/predictions/%e2%82", "/docs/", "/\x7f",
    "/" + "a" * 40_000, "order", "",
)  # fmt: skip


def request(path: str, body: bytes, *lines: bytes, method: str = "POST", length: bool = True) -> bytes:
    """The bytes of a request; the given header lines as they are."""
    own = [b"Content-Length: %d" % len(body)] if length else []
    first = f"{method} {path} HTTP/1.1".encode("utf-8", "surrogateescape")
    return b"\r\n".join([first, b"Host: test", *own, *lines, b"", b""]) + body


def _valid(dice: random.Random) -> bytes:
    return request(dice.choice(PATHS), json.dumps(dice.choice(BODIES)).encode())


def _noise(dice: random.Random) -> bytes:
    return dice.randbytes(dice.choice((1, 3, 20, 200, 3000)))


def mutated(dice: random.Random, data: bytes) -> bytes:
    """These bytes with a few things done to them: flipped, cut, doubled, put in, swapped."""
    for _ in range(dice.randint(1, 4)):
        place, other = sorted((dice.randint(0, len(data)), dice.randint(0, len(data))))
        change = dice.randrange(6)
        if change == 0 and data:
            place = min(place, len(data) - 1)
            data = data[:place] + bytes([data[place] ^ (1 << dice.randrange(8))]) + data[place + 1 :]
        elif change == 1:
            data = data[:place]
        elif change == 2:
            data = data[:other] + data[place:other] * dice.choice((1, 2, 50)) + data[other:]
        elif change == 3:
            data = data[:place] + dice.choice((b"\r\n", b"\x00", b" ", b":", b"\r", b"\n", b"\xff" * 8)) + data[place:]
        elif change == 4:
            data = data[:place] + data[other:]
        else:
            data = data[place:] + data[:place]
    return data[:200_000]


def _value(dice: random.Random, depth: int = 0) -> str:
    """A piece of JSON, or of what somebody may take for it."""
    kind = dice.randrange(9)
    if kind == 0:
        return dice.choice(_NUMBERS)
    if kind == 1:
        return json.dumps(dice.choice(_TEXTS))
    if kind == 2:
        return dice.choice(("null", "true", "False", "undefined", "'a'", '"\\x"', '"\n"', "", "/* */ 1", '"\\ud800"'))
    if kind == 3:
        levels = dice.choice((3, 90, 200, 950, 1100, 20_000))
        return "[" * levels + "]" * dice.choice((levels, levels, levels - 1))
    if kind == 4:
        levels = dice.choice((3, 90, 200, 950, 1100, 10_000))
        return '{"a":' * levels + "1" + "}" * levels
    if depth > 3 or kind == 5:
        return str(dice.randint(-(10**6), 10**6))
    if kind == 6:
        return "[" + ",".join(_value(dice, depth + 1) for _ in range(dice.randint(0, 4))) + "]"
    fields = [f"{json.dumps(dice.choice(('a', 'id', '', 'a')))}:{_value(dice, depth + 1)}" for _ in range(3)]
    return "{" + ",".join(fields) + dice.choice(("}", "}", ",}", "")) + dice.choice(("", "", "x", " "))


_FIELDS = ("id", "count", "note", "kind", "boxes", "tags", "ratio", "is_urgent", "any", "image", "other", "")


def _json_body(dice: random.Random) -> bytes:
    names = dice.sample(_FIELDS, dice.randint(0, 5)) + dice.choice((["id", "count"], ["any"], ["image"], []))
    text = "{" + ",".join(f"{json.dumps(name)}:{_value(dice)}" for name in names) + "}"
    body = (text if dice.random() < 0.9 else _value(dice)).encode("utf-8", "surrogatepass")
    body = dice.choice((b"", b"", b"", b"\xef\xbb\xbf", b"\xff\xfe")) + body
    return request(dice.choice(PATHS), body, *([b"Idempotency-Key: k"] if dice.random() < 0.1 else []))


def _typed_field(dice: random.Random) -> bytes:
    body = dict(dice.choice(BODIES))
    wrong: tuple[Any, ...] = (None, True, -1, 1001, 1.5, "", "x", [], {}, [[]], {"a": []}, 10**30, 1e308, "a" * 300)
    for name in dice.sample((*_FIELDS, *body), 2):
        body[name] = dice.choice(wrong)
    return request(dice.choice(PATHS), json.dumps(body).encode())


def _header(dice: random.Random) -> bytes:
    lines = [dice.choice(_HEADERS).encode() + b": " + dice.choice(_VALUES) for _ in range(dice.randint(1, 4))]
    return request(dice.choice(PATHS), json.dumps(dice.choice(BODIES)).encode(), *lines, length=dice.random() < 0.8)


def _header_form(dice: random.Random) -> bytes:
    form = (
        b"NoColon", b": empty", b"A B: c", b" folded: x", b"A:\x00", b"A" * 40_000 + b": x", b"A: " + b"x" * 40_000,
        b"A\xff: x", b"A: b\nC: d", b"\r", b"A: " + bytes(range(1, 32)), *[b"X-%d: y" % n for n in range(2000)],
    )  # fmt: skip
    return request(dice.choice(PATHS), b"{}", *dice.sample(form, dice.choice((1, 2, 3, 400))))


def _target(dice: random.Random) -> bytes:
    method = dice.choice((*_METHODS, "GET", "POST"))
    return request(dice.choice((*_TARGETS, *PATHS)), dice.choice((b"", b"{}")), method=method)


def _chunked(dice: random.Random) -> bytes:
    sizes = (
        b"5",
        b"0",
        b"-1",
        b"ffffffffffffffffff",
        b"5;a=b",
        b"5;" + b"a" * 9000,
        b"x",
        b"",
        b"05",
        b"5 ",
        b"7fffffff",
    )
    parts = b"".join(dice.choice(sizes) + b"\r\n" + b'{"a":' + b"\r\n" for _ in range(dice.randint(1, 4)))
    end = dice.choice((b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b"", b"0\r\n" + b"T: x\r\n" * 3000 + b"\r\n", b"0\r\n\r"))
    return request(dice.choice(PATHS), parts + end, b"Transfer-Encoding: chunked", length=False)


def _smuggled(dice: random.Random) -> bytes:
    lines = (
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"), (b"Content-Length: 5", b"Content-Length: 6"),
        (b"Transfer-Encoding: xchunked",), (b"Transfer-Encoding: chunked, identity",),
        (b"Transfer-Encoding : chunked",), (b"Transfer-Encoding: gzip, chunked",),
        (b"Content-Length: +5",), (b"Content-Length: 5, 5",),
        (b"Transfer-Encoding:\x0bchunked",), (b"Content-Length: 0x5",), (b"Content-Length: 18446744073709551617",),
    )  # fmt: skip
    inner = request("/v1/models", b"", method="GET")
    return request(dice.choice(PATHS), b"0\r\n\r\n" + inner, *dice.choice(lines), length=False)


def _upgrade(dice: random.Random) -> bytes:
    if dice.random() < 0.2:
        return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + dice.randbytes(30)
    to = dice.choice((b"websocket", b"h2c", b"TLS/1.0", b""))
    lines = (b"Connection: Upgrade", b"Upgrade: " + to, b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: AAAA")
    return request(dice.choice(PATHS), b"{}", *lines, method=dice.choice(("GET", "POST"))) + dice.randbytes(10)


def _version(dice: random.Random) -> bytes:
    version = dice.choice((b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"HTTX/1.1", b"", b"HTTP/1.1 x"))
    return _valid(dice).replace(b"HTTP/1.1", version, 1)


def _pipelined(dice: random.Random) -> bytes:
    some = (_valid, _json_body, _target, _header, _typed_field)
    return b"".join(dice.choice(some)(dice) for _ in range(dice.randint(2, 6)))[:200_000]


def _picture(dice: random.Random) -> bytes:
    data = mutated(dice, PNG)
    if dice.random() < 0.3:  # a header that promises much
        width, height = dice.choice(((2**31 - 1, 2**31 - 1), (0, 0), (100_000, 100_000), (4001, 4000), (1, 2**31 - 1)))
        head = b"IHDR" + width.to_bytes(4) + height.to_bytes(4) + b"\x08\x02\x00\x00\x00"
        data = PNG[:8] + (13).to_bytes(4) + head + zlib.crc32(head).to_bytes(4) + PNG[33:]
    text = base64.b64encode(data).decode() + dice.choice(("", "", "=", "!", "\n", "data:,"))
    return request("/predictions/picture", json.dumps({"image": text}).encode())


def _cut(dice: random.Random) -> bytes:
    data = _valid(dice)
    return data[: dice.randint(1, len(data) - 1)]


HTTP_KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "noise": _noise,
    "mutated request": lambda dice: mutated(dice, _valid(dice)),
    "JSON body": _json_body,
    "field of a wrong type": _typed_field,
    "header value": _header,
    "header form": _header_form,
    "method and target": _target,
    "chunks": _chunked,
    "two lengths": _smuggled,
    "upgrade": _upgrade,
    "version": _version,
    "pipelined": _pipelined,
    "picture": _picture,
    "cut off": _cut,
}


def http_inputs(seed: int) -> Iterator[tuple[str, bytes]]:
    """Kinds in turn, for ever."""
    dice = random.Random(seed)
    while True:
        for kind, make in HTTP_KINDS.items():
            yield kind, make(dice)


def frames(seed: int) -> Iterator[bytes]:
    """Frames of every kind of head, mutated, for ever."""
    dice = random.Random(seed)
    heads: tuple[tuple[messages.Head, list[bytes]], ...] = (
        (messages.Compute(1, "order", [1, 1]), [b"a", b"b"]),
        (messages.Outcomes(1, Report([Outcome(b"a"), Outcome(b"b")], Timing(0.1, 0.1, 0.1), 1, 1)), []),
        (messages.Decision(1, True), []),
        (messages.ErrandDone(1, Outcome(b"abc"), 1.0), []),
        (messages.Failed("sentence", "trace"), []),
    )
    while True:
        head, payloads = dice.choice(heads)
        yield mutated(dice, b"".join(bytes(part) for part in wire.encode(head, payloads)))

"""The base class users derive from, and what is read off such a class."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from inspect import iscoroutinefunction, isfunction
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec

from timebound.errors import SetupError, text_of
from timebound.methods import check_methods, is_used, says
from timebound.request_type import fields_of, is_request_type, reader, schema_of
from timebound.types import ENGINES

Struct = msgspec.Struct
Meta = msgspec.Meta
"""Limits of a field: `Annotated[int, tb.Meta(ge=1, le=10)]`."""

Image64: TypeAlias = Annotated[
    str, msgspec.Meta(extra_json_schema={"contentEncoding": "base64", "contentMediaType": "image/png"})
]
"""A text field that carries a picture as base64; the page offers a drawing board and files for it."""

_TAKEN = ("/", "/docs", "/livez", "/metrics", "/openapi.json", "/readyz", "/ui", "/v1", "/v2")
_TAKEN_FOLDERS = ("/ui/", "/v1/", "/v2/")
_NO_PATH = re.compile(r"[?#%\\\x00-\x1f\x7f]|/\.{1,2}(/|$)")
"""What no client can ask for as it is written: it would be a query, an escape, or another path."""
# How alike two names must be, of 1.0, for one to be taken for the other misspelt: `dedline` yes, `headline` no.
_RESEMBLES = 0.88
# Of a method less is enough, since few are the user's own: `prepair` for `prepare`. `reload` is not `load`.
_METHOD_RESEMBLES = 0.82
_ELSEWHERE = {
    "prepare": ("preprocess", "pre_process", "decode_request", "input_fn", "transform_input", "deserialize"),
    "infer": ("predict", "inference", "predict_batch", "predict_fn", "forward", "execute"),
    "finish": ("postprocess", "post_process", "encode_response", "output_fn", "transform_output", "serialize"),
    "load": ("setup", "initialize", "load_model", "model_fn"),
}
"""By method, what other servers call it."""
_OPTIONS_ELSEWHERE = {"max_batch_size": "max_batch", "batch_size": "max_batch", "timeout": "deadline"}
_BLOCKING = ("requests", "urlopen", "urllib3")
"""What waits without letting others go on."""
MASK = "mask"
"""What the mask of a padded batch is called in it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MEDIA = re.compile(r"[\w.+-]+/([\w.+-]+|\*)")


class Model:
    """A model to serve: override `load` and what differs from the defaults.

    A batch walks `prepare` (each item), `infer` (all together) and `finish` (each item), inside a worker
    process. Raise `timebound.BadInput` in `prepare` to refuse one item; the others are not touched.
    """

    name: ClassVar[str] = ""
    """Name in URLs and metrics; the class name in lower case unless given."""
    path: ClassVar[str | None] = None
    """A route of its own, besides /predictions/<name>."""
    methods: ClassVar[Sequence[str]] = ("POST",)
    """With "GET" too, query parameters fill the request: `/predictions/mood?text=fine`."""
    deadline: ClassVar[float] = 1.0
    """Seconds from arrival to answer, unless the request brings a limit of its own."""
    key: ClassVar[str | None] = None
    """The body field that names a request; a retry with the same key gets the same answer."""
    key_ignore: ClassVar[Sequence[str]] = ("retry", "attempt")
    """Body fields that may differ between attempts of one request, such as a counter or the time of sending."""
    keep: ClassVar[float] = 3600.0
    """Seconds a result is kept for retries."""
    keep_inputs: ClassVar[bool] = False
    """Whether the history (--history) keeps bodies and answers too, not only what became of each request."""
    redact: Any = ()
    """Fields, at any depth, that the history leaves out of JSON bodies and answers; or `def redact(self, request)`,
    which gives what it may keep of a request, None for nothing."""
    keep_votes: ClassVar[float] = 0.0
    """Of an ensemble: for which part of the requests, 0 to 1, the history asks what each member says by itself."""
    label_field: ClassVar[str | None] = None
    """The field of an answer that the history counts by; without one answer, label, prediction, class, category or
    result, whichever comes first."""
    user_field: ClassVar[str | None] = None
    """The field of a body that says whose it is; the history counts by it."""
    cache: ClassVar[str | None] = None
    """"content": requests without a key are known by their body, so equal inputs are computed once."""
    version: ClassVar[str] = "1"
    max_batch: ClassVar[int] = 64
    """No batch is ever larger than this."""
    parallel: ClassVar[bool | None] = None
    """Whether one copy may run several batches at once, in threads; None asks the backend."""
    engine: ClassVar[str | None] = None
    """What its ONNX files run on, such as "openvino-bf16"; the option `engine` beats it."""
    example: ClassVar[Any] = None
    """A body that the model answers: warms it up, fills the docs and the page."""
    Request: ClassVar[type | None] = None
    """A `timebound.Struct`, dataclass or pydantic model for typed JSON bodies; without it `prepare` gets bytes."""
    lax: ClassVar[bool] = False
    """Whether `Request` takes "1" and 1.0 for a whole number, "true" for a bool, and the like."""
    json: ClassVar[bool | None] = None
    """Without `Request`: whether bodies are JSON, and `prepare` gets what they say: dicts, lists, numbers. None: they
    are if `example` is a dict or a list."""
    Answer: ClassVar[Any] = None
    """A `timebound.Struct` (or dataclass, or type) that describes answers in /openapi.json; the example's must fit."""
    accepts: ClassVar[str | None] = None
    """For raw bodies: what they are, such as "image/*" or "text/plain"; told to clients, not enforced."""
    samples: ClassVar[str | Sequence[Mapping[str, Any]]] = ()
    """Bodies to try on the page: a list of {"title": ..., "body": ...}, or a folder beside the served file."""

    size: Any = None
    """The field whose length is a request's size ("text"), or `def size(self, request)`: for inputs that vary."""

    pad: ClassVar[str | Sequence[str] | bool] = False
    """The arrays of an item that vary in length: `infer` gets a dict with them padded, and their `mask`."""

    Settings: ClassVar[type | None] = None
    """A `timebound.Struct` for the app's own settings; without it `self.settings` has them as they were written."""
    settings: Any = SimpleNamespace()
    """Set by the server before `equip` and `load`: `[app]` in timebound.toml, `APP_<NAME>`, `--set name=value`."""

    net: Any = None

    opened: Sequence[Any] = ()
    """Set by the server: the ONNX files that it opened while it was loaded."""
    on_device: Sequence[Any] = ()
    """Set by the server: the networks that it opened on a device, whatever their attributes are called."""
    folder: ClassVar[str | None] = None
    """Set by the server: the folder whose versions it is one of."""

    def equip(self) -> None:
        """Set what `prepare`, `finish` and `fallback` need (a tokeniser, labels); runs in every process, before `load`.

        Processes that only prepare or fall back never call `load`, so they need no weights.
        """

    def load(self) -> None:
        """Load weights; runs once per worker, before it is ready."""

    fetch: Any = None
    """Define `async def fetch(self, request)` to wait for the world without a slot: what it returns is the request that
    `prepare` and `finish` get."""
    fetch_limit: ClassVar[float | None] = None
    """Seconds that `fetch` may take, within the deadline."""
    example_fetched: ClassVar[Any] = None
    """What `fetch` gives for `example`, so that a start asks nothing of the world."""

    def prepare(self, request: Any) -> Any:
        """Turn one request into what `infer` takes."""
        return request

    def infer(self, batch: Any) -> Any:
        """Compute a whole batch: one output per item, in order. Arrays of one shape come stacked."""
        return self.net(batch)

    def finish(self, output: Any, request: Any) -> Any:
        """Turn one item's output into its answer: anything JSON can say, or bytes."""
        return output

    fallback: Any = None
    """Define `def fallback(self, request)` to give a cheap answer when time runs out."""


def name_of(cls: type[Model]) -> str:
    """The name a model class is served under."""
    return cls.name or cls.__name__.lower()


def check_class(cls: type[Model]) -> None:
    """Raise `SetupError` for mistakes that can be seen without loading anything."""
    name, where = name_of(cls), f"class {cls.__name__}"
    for option, value in (("name", name), ("key", cls.key)):
        if value is not None and not isinstance(value, str):
            raise SetupError(f"{where}: {option} is {value!r}; give a text")
    if not _NAME.fullmatch(name):
        raise SetupError(f"{where}: name {name!r} must be letters, digits, '.', '_' or '-', at most 64 of them")
    if cls.infer is Model.infer and cls.load is Model.load and cls.net is None:
        cure = f"{where} has no infer: define `def infer(self, batch)`, or set self.net in load()"
        raise SetupError("; ".join([cure, *doubtful_attributes(cls)]))
    if not isinstance(cls.deadline, int | float) or not 0.001 <= cls.deadline <= 3600:
        raise SetupError(f"{where}: deadline is {cls.deadline!r}; give seconds between 0.001 and 3600")
    if not isinstance(cls.max_batch, int) or cls.max_batch < 1:
        raise SetupError(f"{where}: max_batch is {cls.max_batch!r}; give a whole number of at least 1")
    if not isinstance(cls.keep, int | float) or not 0 < cls.keep <= 366 * 86400:
        raise SetupError(f"{where}: keep is {cls.keep!r}; give seconds above 0 and up to a year")
    if cls.cache not in (None, "content"):
        raise SetupError(f'{where}: cache is {cls.cache!r}; give "content" or leave it out')
    if cls.engine is not None and cls.engine not in ENGINES:
        raise SetupError(f"{where}: engine is {cls.engine!r}; give one of {', '.join(ENGINES)}")
    if not isinstance(cls.keep_votes, int | float) or not 0 <= cls.keep_votes <= 1:
        raise SetupError(f"{where}: keep_votes is {cls.keep_votes!r}; give a part of the requests, from 0 to 1")
    if not callable(cls.redact) and not (
        isinstance(cls.redact, list | tuple | set | frozenset) and all(isinstance(name, str) for name in cls.redact)
    ):
        raise SetupError(f"{where}: redact is {cls.redact!r}; give a list of field names, or a method")
    if isinstance(cls.key_ignore, str) or not all(isinstance(name, str) for name in cls.key_ignore):
        raise SetupError(f"{where}: key_ignore is {cls.key_ignore!r}; give a list of field names")
    check_methods(cls, where)
    _check_fetch(cls, where)
    _check_path(cls.path, where)
    _check_methods(cls, where)
    _check_request_type(cls, where)
    _check_accepts(cls, where)
    _check_pad(cls, where)


def _check_pad(cls: type[Model], where: str) -> None:
    if cls.pad is True and not isinstance(cls.size, str):
        raise SetupError(f'{where}: pad = True pads the field that `size` names; write pad = "ids"')
    fields = padded_fields(cls)
    if not all(isinstance(field, str) and field for field in fields) or MASK in fields:
        raise SetupError(f'{where}: pad is {cls.pad!r}; give the name of what varies in length, such as "ids"')


def padded_fields(cls: type[Model]) -> tuple[str, ...]:
    """What `infer` gets padded of an item; empty for most."""
    if cls.pad is True:
        return (str(cls.size),)
    return (cls.pad,) if isinstance(cls.pad, str) else tuple(cls.pad or ())


def size_field(cls: type[Model]) -> str | None:
    """The field of a body that says its size: the class's `size`, or what `pad` names if that is a field of a body."""
    if cls.size is not None:
        return cls.size if isinstance(cls.size, str) else None
    name = next(iter(padded_fields(cls)), None)
    if cls.Request is None:
        return name if takes_json(cls) and cls.prepare is Model.prepare else None
    return name if name in fields_of(cls.Request) else None


def _check_fetch(cls: type[Model], where: str) -> None:
    if cls.fetch is not None and not iscoroutinefunction(cls.fetch):
        cure = "write `async def fetch(self, request)`"
        raise SetupError(
            f"{where}: {cure}: hundreds of requests fetch in one event loop, which a plain one would hold up"
        )
    if cls.fetch is not None and cls.example is None:
        raise SetupError(f"{where}: set `example` to a body that fetch() can be tried on; nothing made up would do")
    limit = cls.fetch_limit
    if limit is not None and (not isinstance(limit, int | float) or not 0 < limit <= 3600):
        raise SetupError(f"{where}: fetch_limit is {limit!r}; give seconds above 0")
    if cls.fetch is None and (limit is not None or cls.example_fetched is not None):
        raise SetupError(
            f"{where}: fetch_limit and example_fetched are for a class with `async def fetch(self, request)`"
        )


def _check_path(path: Any, where: str) -> None:
    if path is None:
        return
    if not isinstance(path, str) or not path.startswith("/"):
        raise SetupError(f"{where}: path is {path!r}; it must start with '/'")
    if path in _TAKEN or path.startswith(_TAKEN_FOLDERS):
        raise SetupError(f"{where}: path {path!r} is one of the server's own; choose another")
    if _NO_PATH.search(path):
        raise SetupError(f"{where}: path {path!r} cannot be asked for; leave out '?', '#', '%', '\\' and '..'")


def _check_methods(cls: type[Model], where: str) -> None:
    if isinstance(cls.methods, str) or "POST" not in cls.methods or not {*cls.methods} <= {"GET", "POST"}:
        raise SetupError(f'{where}: methods is {cls.methods!r}; give ("POST",) or ("GET", "POST")')
    if "GET" in cls.methods and cls.Request is None and not takes_json(cls):
        raise SetupError(f"{where}: a GET has no body to be raw; add `class Request(tb.Struct)`, or json = True")


def _check_accepts(cls: type[Model], where: str) -> None:
    if cls.accepts is None:
        return
    if not isinstance(cls.accepts, str) or not all(_MEDIA.fullmatch(part) for part in media_types(cls.accepts)):
        raise SetupError(f'{where}: accepts is {cls.accepts!r}; give media types, such as "image/*" or "text/plain"')
    if cls.Request is not None or cls.json:
        typed = "json = True" if cls.json else "Request"
        raise SetupError(f"{where}: accepts is for raw bodies, and {typed} makes the body JSON; remove one of them")


def media_types(accepts: str) -> list[str]:
    """`"image/png, image/jpeg"` as a list."""
    return [part.strip() for part in accepts.split(",")]


def doubtful_attributes(cls: type[Model]) -> list[str]:
    """One sentence for each attribute that looks like a misspelt option; what resembles no option is the user's own."""
    options = [name for name in vars(Model) if not name.startswith("_")]
    given = {name: value for base in reversed(_own_classes(cls)) for name, value in vars(base).items()}
    lower = {option.lower(): option for option in options}
    found = []
    for name, value in given.items():
        if name.startswith("_") or name in options or name.removesuffix("s") in options:  # `names`, `sizes`: not ours
            continue
        meant = get_close_matches(name.lower(), lower, n=1, cutoff=_RESEMBLES)
        elsewhere = _method_meant if isfunction(value) else _option_meant
        what = lower[meant[0]] if meant else elsewhere(name, given)
        if what is not None:
            found.append(f"class {cls.__name__}: {name} means nothing to the server; did you mean {what}?")
    if cls.fetch is not None and (
        blocking := next((name for name in _BLOCKING if says(cls.fetch.__code__, name)), None)
    ):
        cure = "use a client that is awaited, such as httpx.AsyncClient or aiohttp"
        found.append(f"class {cls.__name__}: fetch() uses {blocking}, which holds up all other requests; {cure}")
    return found


def _method_meant(name: str, given: Mapping[str, Any]) -> str | None:
    """The method that this one was to be; None if the class calls it, or has that one and this under another's name."""
    if is_used(name, given):
        return None
    methods = ["fallback", "size", "fetch", *(option for option, value in vars(Model).items() if isfunction(value))]
    if alike := get_close_matches(name.lower(), methods, n=1, cutoff=_METHOD_RESEMBLES):
        return alike[0]
    meant = next((ours for ours, theirs in _ELSEWHERE.items() if name.lower() in theirs), None)
    return None if meant in given else meant


def _option_meant(name: str, given: Mapping[str, Any]) -> str | None:
    """The option that other servers call so, unless the class reads this one itself or sets that one too."""
    meant = _OPTIONS_ELSEWHERE.get(name)
    return None if meant in given or is_used(name, given) else meant


def _own_classes(cls: type[Model]) -> tuple[type, ...]:
    return cls.__mro__[: cls.__mro__.index(Model)]


def _check_request_type(cls: type[Model], where: str) -> None:
    request = cls.Request
    if cls.json and request is not None:
        raise SetupError(f"{where}: json = True is for models without Request; remove one of them")
    if cls.lax and request is None:
        raise SetupError(f"{where}: lax = True is about the fields of Request; add `class Request(tb.Struct)`")
    if request is None:
        for option, value in (("key", cls.key), ("size", cls.size)):
            if isinstance(value, str) and not takes_json(cls):
                raise SetupError(f"{where}: {option} = {value!r} needs a typed body; add `class Request(tb.Struct)`")
        return
    if not is_request_type(request):
        raise SetupError(
            f"{where}: Request must be a tb.Struct, a dataclass or a pydantic model; write `class Request(tb.Struct):`"
        )
    try:
        names = fields_of(request)
    except Exception as error:  # pydantic has exceptions of its own
        raise SetupError(f"{where}: JSON cannot fill Request: {text_of(error)}; use plain types") from error
    for option, value in (("key", cls.key), ("size", cls.size)):
        if isinstance(value, str) and value.split(".")[0] not in names:
            raise SetupError(f"{where}: {option} = {value!r} is not a field of Request (it has: {', '.join(names)})")


def takes_json(cls: type[Model]) -> bool:
    """Whether a class without `Request` takes JSON: if it says so, or else if its example is JSON."""
    if cls.json is not None:
        return cls.json
    return cls.Request is None and cls.accepts is None and isinstance(cls.example, Mapping | list)


def request_schema(request: type | None) -> dict[str, Any] | None:
    """JSON Schema of a request type, with its parts under `$defs`; None for raw bodies."""
    return None if request is None else schema_of(request)


def body_schema(cls: type[Model]) -> dict[str, Any] | None:
    """JSON Schema of a model's bodies; None for raw ones."""
    if cls.Request is not None:
        return schema_of(cls.Request, is_lax=cls.lax)
    if not takes_json(cls):
        return None
    named = [option.split(".")[0] for option in (cls.key, size_field(cls)) if isinstance(option, str)]
    return {"type": "object", "properties": {name: {} for name in named}} if named else {}


def decoder(cls: type[Model]) -> tuple[Callable[[Any], Any], bool]:
    """What makes a request of a body, and whether that is the raw body itself."""
    if (
        read := getattr(cls, "__read_body__", None)
    ) is not None:  # a model file's own, which knows what is often sent wrongly
        return read, False
    if cls.Request is not None:
        return reader(cls.Request, is_lax=cls.lax), False
    return (msgspec.json.Decoder().decode, False) if takes_json(cls) else (bytes, True)


def example_body(example: Any) -> bytes:
    """The bytes a client would send for `example`."""
    if isinstance(example, bytes | bytearray | memoryview):
        return bytes(example)
    if isinstance(example, str):
        return example.encode()
    if isinstance(example, Mapping | msgspec.Struct | list):
        try:
            return msgspec.json.encode(example)
        except TypeError as error:
            raise SetupError(f"example is not JSON: {error}; use plain numbers, texts and lists") from None
    raise SetupError(f"example is a {type(example).__name__}; give a dict (typed body) or bytes (raw body)")

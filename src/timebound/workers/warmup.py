"""The warm-up run: one real inference before a worker calls itself ready, and what it found out."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from msgspec.structs import replace

from timebound.answer_type import answer_schema, check_answer, example_of
from timebound.backends.base import Backend
from timebound.backends.ensemble import Ensemble
from timebound.backends.file_model import zeros
from timebound.body import FirstLook
from timebound.clock import Clock
from timebound.devices.base import settle_all
from timebound.errors import RequestError, SetupError
from timebound.handlers.model import HandlerModel
from timebound.importer import describe
from timebound.model import Model, body_schema, example_body, media_types, size_field, takes_json
from timebound.schema import sample
from timebound.types import Body, ModelInfo
from timebound.workers.fetching import example_parcel, has_fetch
from timebound.workers.hearing import Hearing, hearing
from timebound.workers.lengths import try_lengths
from timebound.workers.libraries import made_on
from timebound.workers.pieces import whole
from timebound.workers.runner import Runner
from timebound.workers.samples import read_samples

log = logging.getLogger("timebound.worker")

_LONGEST_DESCRIPTION = 500
_PARSED = "; its bodies are JSON and arrive parsed: with `json = False` they would be bytes"
_OF_ANOTHER_KIND = (TypeError, AttributeError, LookupError)
"""What code for bytes raises when it is given what was parsed."""
_BATCH = "; infer() gets a whole batch: what prepare() gave for each item, in a list, and returns one output for each"
_OF_A_LIST = re.compile(r"'list' object|\blist indices\b")
"""What code for a single item raises when it is given a list."""
_NO_ANSWER = object()
"""Of a run that went no further than `infer`."""


def warm_up(
    runner: Runner,
    clock: Clock,
    slots: int = 1,
    fetched: bytes = b"",
    tell: Callable[[str], None] = lambda sentence: None,
) -> ModelInfo:
    """Run the model on its example, twice (the first pays for lazy set-up); raise `SetupError` if it fails.

    `fetched` is the example with what `fetch` gave for it, if that is known. `tell` hears how far a long one is.
    """
    model = runner.model
    schema = body_schema(type(model))
    answer_schema(type(model).Answer, runner.name)  # what is wrong with it is told before anything runs
    example = model.example
    if example is None and isinstance(model, HandlerModel):  # it takes nothing that could be made up
        return _info(runner, schema, None, 0.0, _NO_ANSWER, slots=slots, is_whole=False)
    inputs = model.net.inputs if isinstance(model.net, Backend) else ()
    if example is None and inputs and type(model).infer is Model.infer:
        run = partial(_zeros_run, runner, inputs)
    else:
        what = "a made-up body" if example is None else "the example"
        if example is None:
            example = b"" if schema is None else made if (made := sample(schema)) is not None else {}
        body = example_body(example)
        if has_fetch(model):
            body = fetched = fetched or example_parcel(model, body, clock)
        run = partial(_walk, runner, body, what)
    run()
    doubts: list[str] = []
    # A device captures now what it has met, before anything is timed.
    settle_all(type(model).max_batch, slots, lambda sentence: tell(f"{runner.name}: {sentence}"))
    start = clock.now()
    answer = run()
    took = clock.now() - start
    if model.example is not None and type(model).max_batch > 1:
        run(count=2)  # one item hides a forgotten batch axis
        doubts = try_lengths(runner, body)
    is_whole = _run_sizes(model, run, clock)
    if isinstance(model.net, Ensemble):
        model.net.put_in_order()
    info = _info(runner, schema, example, took, answer, slots=slots, is_whole=is_whole)
    grid_s = _grid(runner, info, body) if info.step_s and not fetched and example is not None else []
    return replace(info, fetched=fetched, grid_s=grid_s, notes=[*info.notes, *doubts])


def _grid(runner: Runner, info: ModelInfo, body: bytes) -> list[tuple[float, list[list[float]]]]:
    """What was measured at several lengths, by the sizes that requests of such lengths have: as the example's is."""
    if info.has_size:
        size = float(runner.model.size(runner.decode(body)))
    elif info.size_field:
        size = FirstLook(info).check(body)[1]
    else:
        return []
    return [(length * size, steps) for length, steps in runner.model.net.seconds_by_length()]


def _run_sizes(model: Model, run: Callable[..., Any], clock: Clock) -> bool:
    """Run each batch size that the backend wants to have met, up to one that takes longer than the deadline.

    Whether `infer` hands its batches to the backend as they are.
    """
    net = model.net if isinstance(model.net, Backend) else None
    if net is None:
        return False
    # What is captured runs once more with what the class does before and after it.
    sizes = net.warm_sizes(type(model).max_batch) if net.device == "cpu" else net.batch_sizes
    is_own = type(model).infer is not Model.infer
    if is_own and net.device == "cpu":
        sizes = sorted({*sizes, *(size for size in net.batch_sizes if size <= type(model).max_batch)})
    with net.warming(), hearing(model) if is_own else nullcontext() as heard:
        for size in sizes:
            # The first run of a size may pay for its set-up: only what is late again is too much.
            if all(_seconds_of(run, size, clock, heard) > type(model).deadline for _ in range(2)):
                break
    return heard is None or heard.is_whole


def _seconds_of(run: Callable[..., Any], size: int, clock: Clock, heard: Hearing | None) -> float:
    if heard is not None:
        heard.begin(size)
    start = clock.now()
    run(count=size)
    return clock.now() - start


def _info(
    runner: Runner,
    schema: dict[str, Any] | None,
    example: Any,
    took: float,
    answer: Any,
    *,
    slots: int,
    is_whole: bool,
) -> ModelInfo:
    model, cls = runner.model, type(runner.model)
    backend = model.net if isinstance(model.net, Backend) else None
    parallel = cls.parallel if cls.parallel is not None else bool(backend and backend.parallel)
    # An `infer` of the class's own may do anything with a batch before the backend sees it.
    sizes = list(backend.batch_sizes) if backend is not None and is_whole else []
    on_device: list[Any] = [each for each in (backend, *model.on_device) if each is not None and each.device != "cpu"]
    device = on_device[0].device if on_device else "cpu"
    shown, media = (None, "") if answer is _NO_ANSWER else example_of(runner.encode, answer)
    return ModelInfo(
        name=runner.name,
        version=cls.version,
        description=_first_paragraph(cls),
        path=cls.path,
        deadline_s=float(cls.deadline),
        key=cls.key,
        key_ignore=list(cls.key_ignore),
        keep_inputs=bool(cls.keep_inputs),
        redact=[] if callable(cls.redact) else list(cls.redact),
        has_redact=bool(cls.keep_inputs) and callable(cls.redact),
        keep_votes=float(cls.keep_votes),
        label_field=cls.label_field,
        user_field=cls.user_field,
        keep_s=float(cls.keep),
        cache=cls.cache,
        folder=cls.folder,
        body=Body.RAW if schema is None else Body.JSON,
        accepts=media_types(cls.accepts) if cls.accepts else [],
        request_schema=schema,
        methods=tuple(cls.methods),
        answer_schema=answer_schema(cls.Answer, runner.name),
        answer_example=shown,
        answer_media=media,
        example=None if isinstance(example, bytes | bytearray) else example,
        samples=read_samples(cls, schema),
        backend=backend.kind if backend else "python",
        engine=", ".join(dict.fromkeys(str(each.engine) for each in model.opened)),
        members=runner.members,
        member_names=list(getattr(model.net, "names", ())),
        combine=getattr(model.net, "combine", None),
        has_fallback=callable(model.fallback),
        size_field=size_field(cls),
        has_size=callable(cls.size),
        has_fetch=cls.fetch is not None,
        max_batch=min(cls.max_batch, sizes[-1]) if sizes else cls.max_batch,
        batch_sizes=sizes,
        is_parallel=parallel,
        warm_up_s=took,
        device=device,
        depth=slots if device != "cpu" else 1,
        made_on=made_on(model),
        step_s=backend.member_seconds() if backend is not None and sizes else [],
        together_s=backend.together_seconds() if backend is not None and sizes else [],
        captured="; ".join(dict.fromkeys(words for each in on_device if (words := each.captured()))),
        notes=list(dict.fromkeys(note for each in (backend, *on_device) if each is not None for note in each.notes())),
        inputs=runner.tensors.inputs,
        outputs=[] if answer is _NO_ANSWER else runner.tensors.outputs(answer),
    )


def _first_paragraph(cls: type[Model]) -> str:
    text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")  # not the base class's own
    return " ".join(text.partition("\n\n")[0].split())[:_LONGEST_DESCRIPTION]


def _walk(runner: Runner, body: bytes, what: str, count: int = 1) -> Any:
    model, stage = runner.model, "decoding"
    cure = (
        "set `example` on the class to a body it can answer" if what != "the example" else "fix `example` or `Request`"
    )
    try:
        request = runner.decode(body)
        stage = "prepare()"
        item = model.prepare(request)
        stage = "infer()"
        output = runner.infer([item] * count)[0]
        stage = "finish()"
        answer = whole(model.finish(output, request))
        check_answer(type(model).Answer, runner.encode(answer), runner.name)
    except SetupError:
        raise
    except RequestError as error:
        field = f" (field {error.field})" if error.field else ""
        raise SetupError(f"{runner.name}: {stage} refused {what}{field}: {error.detail}; {cure}") from error
    except BaseException as error:
        hint = _hint(model, stage, error) or (f"; {cure}" if what != "the example" else "")
        raise SetupError(f"{runner.name}: {stage} failed on {what}: {describe(error)}{hint}") from error
    return answer


def _hint(model: Model, stage: str, error: BaseException) -> str:
    """What is usually the mistake where code meets something of another kind; nothing if nothing is known."""
    if not isinstance(error, _OF_ANOTHER_KIND):
        return ""
    if stage == "infer()" and _OF_A_LIST.search(str(error)):
        return _BATCH
    return _PARSED if type(model).json is None and takes_json(type(model)) else ""


def _zeros_run(runner: Runner, inputs: Any, count: int = 1) -> Any:
    arrays = {spec.name: zeros(spec) for spec in inputs}
    try:
        runner.infer([arrays if len(arrays) > 1 else next(iter(arrays.values()))] * count)
    except BaseException as error:
        raise SetupError(f"{runner.name}: the warm-up run on zeros failed: {describe(error)}") from error
    return _NO_ANSWER

"""The warm-up run: one real inference before a worker calls itself ready, and what it found out."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from timebound.answer_type import answer_schema, check_answer, example_of
from timebound.backends.base import Backend
from timebound.backends.ensemble import Ensemble
from timebound.backends.file_model import zeros
from timebound.clock import Clock
from timebound.devices.base import settle_all
from timebound.errors import RequestError, SetupError
from timebound.handlers.model import HandlerModel
from timebound.importer import describe
from timebound.model import Model, body_schema, example_body, media_types, size_field
from timebound.schema import sample
from timebound.types import Body, ModelInfo
from timebound.workers.fetching import example_parcel, has_fetch
from timebound.workers.lengths import try_lengths
from timebound.workers.libraries import made_on
from timebound.workers.runner import Runner
from timebound.workers.samples import read_samples

log = logging.getLogger("timebound.worker")

_LONGEST_DESCRIPTION = 500
_NO_ANSWER = object()
"""Of a run that went no further than `infer`."""


def warm_up(runner: Runner, clock: Clock, slots: int = 1, fetched: bytes = b"") -> ModelInfo:
    """Run the model on its example, twice (the first pays for lazy set-up); raise `SetupError` if it fails.

    `fetched` is the example with what `fetch` gave for it, if that is known.
    """
    model = runner.model
    schema = body_schema(type(model))
    answer_schema(type(model).Answer, runner.name)  # what is wrong with it is told before anything runs
    example = model.example
    if example is None and isinstance(model, HandlerModel):  # it takes nothing that could be made up
        return _info(runner, schema, None, 0.0, _NO_ANSWER, slots=slots)
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
    settle_all(type(model).max_batch, slots, partial(log.info, "%s: %s", runner.name))
    start = clock.now()
    answer = run()
    took = clock.now() - start
    if model.example is not None and type(model).max_batch > 1:
        run(count=2)  # one item hides a forgotten batch axis
        doubts = try_lengths(runner, body)
    _run_sizes(model, run, clock)
    if isinstance(model.net, Ensemble):
        model.net.put_in_order()
    info = _info(runner, schema, example, took, answer, slots=slots)
    return replace(info, fetched=fetched, notes=[*info.notes, *doubts])


def _run_sizes(model: Model, run: Callable[..., Any], clock: Clock) -> None:
    """Run each batch size that the backend wants to have met, up to one that takes longer than the deadline."""
    net = model.net if isinstance(model.net, Backend) else None
    if net is None:
        return
    # What is captured runs once more with what the class does before and after it.
    sizes = net.warm_sizes(type(model).max_batch) if net.device == "cpu" else net.batch_sizes
    with net.warming():
        for size in sizes:
            # The first run of a size may pay for its set-up: only what is late again is too much.
            if all(_seconds_of(run, size, clock) > type(model).deadline for _ in range(2)):
                return


def _seconds_of(run: Callable[..., Any], size: int, clock: Clock) -> float:
    start = clock.now()
    run(count=size)
    return clock.now() - start


def _info(
    runner: Runner, schema: dict[str, Any] | None, example: Any, took: float, answer: Any, *, slots: int
) -> ModelInfo:
    model, cls = runner.model, type(runner.model)
    backend = model.net if isinstance(model.net, Backend) else None
    parallel = cls.parallel if cls.parallel is not None else bool(backend and backend.parallel)
    # An `infer` of the class's own may do anything with a batch before the backend sees it.
    sizes = list(backend.batch_sizes) if backend is not None and cls.infer is Model.infer else []
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
        redact=list(cls.redact),
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
        device=backend.device if backend is not None else "cpu",
        depth=slots if backend is not None and backend.device != "cpu" else 1,
        made_on=made_on(model),
        step_s=backend.member_seconds() if backend is not None and sizes else [],
        together_s=backend.together_seconds() if backend is not None and sizes else [],
        notes=backend.notes() if backend is not None else [],
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
        answer = model.finish(output, request)
        check_answer(type(model).Answer, runner.encode(answer), runner.name)
    except SetupError:
        raise
    except RequestError as error:
        field = f" (field {error.field})" if error.field else ""
        raise SetupError(f"{runner.name}: {stage} refused {what}{field}: {error.detail}; {cure}") from error
    except BaseException as error:
        hint = f"; {cure}" if what != "the example" else ""
        raise SetupError(f"{runner.name}: {stage} failed on {what}: {describe(error)}{hint}") from error
    return answer


def _zeros_run(runner: Runner, inputs: Any, count: int = 1) -> Any:
    arrays = {spec.name: zeros(spec) for spec in inputs}
    try:
        runner.infer([arrays if len(arrays) > 1 else next(iter(arrays.values()))] * count)
    except BaseException as error:
        raise SetupError(f"{runner.name}: the warm-up run on zeros failed: {describe(error)}") from error
    return _NO_ANSWER

"""For tests of a model: `ask` computes answers in this process, `server` is a real server on a free port."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from warnings import warn

import msgspec

from timebound.app_settings import read_here
from timebound.clock import MonotonicClock
from timebound.errors import BadInput, RequestError, SetupError
from timebound.model import Model, doubtful_attributes, example_body, name_of
from timebound.program import Served, Started, source_of, start, target_of
from timebound.target import home_of, load_class, load_models
from timebound.types import Outcome
from timebound.workers.fetching import fetch_here, has_fetch
from timebound.workers.members import open_runner
from timebound.workers.runner import Runner


def ask(model: Served, body: Any, *, name: str = "") -> Any:
    """The answer to one body, a dict or bytes as a client would send; raises what the client would be told.

    Warns of what looks like a misspelt method or option.
    The model is loaded once per test run. `name` says which one, where a file has several.
    """
    (answer,) = batch(model, [body], name=name)
    if isinstance(answer, RequestError):
        raise answer
    return answer


def batch(model: Served, bodies: Sequence[Any], *, name: str = "") -> list[Any]:
    """The answers to several bodies, computed as one batch; in the place of an item that fails, its `RequestError`."""
    loaded: Any = model  # each of the kinds has a hash, which their union does not say
    runner, outcomes = _runner(loaded, name), [Outcome(example_body(body)) for body in bodies]
    if has_fetch(runner.model):
        outcomes = fetch_here(runner.model, [outcome.body for outcome in outcomes], runner.clock)
    report = runner.run([outcome.body for outcome in outcomes if not outcome.code])
    assert report is not None, "only an ensemble that is asked after each member reports nothing more"
    computed = iter(report.outcomes)
    return [_told(outcome if outcome.code else next(computed)) for outcome in outcomes]


def server(model: Served, **options: Any) -> Started:
    """A real server of the model until the `with` block ends: `with server(Mood) as mood: mood.ask({...})`."""
    return start(model, **options)


def _told(outcome: Outcome) -> Any:
    if outcome.code:
        facts = msgspec.json.decode(outcome.body)
        kind = BadInput if outcome.code == BadInput.code else RequestError
        return kind(facts["detail"], code=outcome.code, field=facts["field"])
    return msgspec.json.decode(outcome.body) if outcome.media == "application/json" else outcome.body


@cache
def _runner(model: Any, name: str) -> Runner:
    loaded = _loaded(model, name)
    for doubt in doubtful_attributes(type(loaded)):
        warn(doubt, stacklevel=4)
    return open_runner(loaded, MonotonicClock())


def _loaded(model: Served, name: str) -> Model:
    if isinstance(model, type) and issubclass(model, Model):
        file = source_of(model)  # a notebook's classes have none, and need none here
        return load_class(model, app=read_here(file.parent if file is not None else Path.cwd()))
    with ExitStack() as until:
        target = target_of(model, until)
        models = {name_of(type(each)): each for each in load_models(target, threads=1, app=read_here(home_of(target)))}
    if name in models:
        return models[name]
    if name or len(models) != 1:
        raise SetupError(f"{model} has the models {', '.join(models)}; say which one: name={next(iter(models))!r}")
    return next(iter(models.values()))

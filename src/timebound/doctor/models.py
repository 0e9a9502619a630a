"""Checks of the models: a dry run in a process of its own, and what its figures mean for deadlines and memory."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from timebound.config import Config
from timebound.doctor.dryrun import Failed, Loaded, Seen, Stage, Word
from timebound.doctor.finding import Finding, ok, problem, warning
from timebound.doctor.gpus import captured, library
from timebound.errors import SetupError
from timebound.lab.curve import Point
from timebound.lab.load.launch import Ended, run_program
from timebound.machine.gpus import gpus
from timebound.target import check_target

# Time for each batch size.
BUDGET_S = 0.25
# A lone answer that takes more of the deadline than this leaves too little for company and bad moments.
ROOMY = 0.5


def check_models(target: Path, config: Config, cores: int, available_mib: float, timeout_s: float) -> Iterator[Finding]:
    """All about the target: whether it loads and answers, and whether it does so in time."""
    try:
        check_target(target)
    except SetupError as error:
        yield problem("target", str(error))
        return
    threads = config.threads or 1
    device = "" if config.device == "auto" else config.device
    chosen = json.dumps({"engines": config.engines, "modes": config.modes, "max_batch": config.max_batch})
    arguments = (str(target), str(threads), str(BUDGET_S), chosen, device)
    ended = run_program("timebound.doctor.dryrun", *arguments, threads=threads, timeout_s=timeout_s)
    words = [msgspec.json.decode(line, type=Word) for line in ended.found]
    *_, stage = ["importing", *(word.name for word in words if isinstance(word, Stage))]
    death = _death(ended, timeout_s, stage)
    loaded = next((word for word in words if isinstance(word, Loaded)), None)
    if loaded is not None:
        names = ", ".join(loaded.models)
        yield ok("target", f"loads in {loaded.seconds:.2f} s, {loaded.memory_mib:.0f} MiB: {names}")
        yield from library(loaded.torch, loaded.device, loaded.free_bytes, has_gpu=bool(gpus(os.environ)))
    seen = [word for word in words if isinstance(word, Seen)]
    for each in seen:
        yield from check_model(each, config)
    for word in words:
        if isinstance(word, Failed):
            yield problem("model" if loaded else "target", word.why)
    if death is not None:
        yield problem("model", death)
    if seen and death is None:
        yield room(seen, config, cores, available_mib)


def _death(ended: Ended, timeout_s: float, stage: str) -> str | None:
    """How the dry run came to a bad end, if it did; `stage` is what it was about to do."""
    if ended.code is None:
        return f"{stage} takes longer than {timeout_s:g} s; make it faster, or allow more with --timeout"
    if ended.code < 0:
        name = signal.Signals(-ended.code).name
        hint = "; it may have run out of memory" if name == "SIGKILL" else ""
        return f"the process died of {name} in {stage}{hint}; run it in a Python of its own to see why"
    if ended.code > 0:
        return f"the process left in {stage}: {ended.last_line}; remove exit() from the model, or fix what it reports"
    return None


def check_model(seen: Seen, config: Config) -> Iterator[Finding]:
    """One model, from what was seen of it."""
    name = seen.info.name
    yield ok(name, "; ".join(map(_shown, seen.points)))
    yield from captured(seen.info, seen.why_no_hands)
    yield deadline(seen, config)
    yield from example(seen, config)
    yield fallback(seen, config)
    yield from habits(seen)
    for doubt in seen.doubts:
        yield warning(f"{name} class", doubt, "rename it; or begin its name with _, if it is your own")


def _shown(point: Point) -> str:
    stages = (point.timing.prepare_s, point.timing.infer_s, point.timing.finish_s)
    parts = " + ".join(f"{seconds * 1e3:.2f}" for seconds in stages)
    return f"batch of {point.batch}: {point.seconds * 1e3:.2f} ms (prepare + infer + finish {parts})"


def deadline(seen: Seen, config: Config) -> Finding:
    """Whether one lone request is answered in time, with something to spare."""
    check, info, alone_s = f"{seen.info.name} deadline", seen.info, seen.points[0].seconds
    limit_s = config.deadline or info.deadline_s
    text = f"a lone request takes {alone_s * 1e3:.2f} ms of {limit_s * 1e3:g} ms"
    if limit_s > config.max_deadline:
        cure = "raise --max-deadline, or lower the deadline"
        return warning(check, f"it is {limit_s:g} s and max_deadline cuts it to {config.max_deadline:g} s", cure)
    if alone_s > limit_s - config.margin:
        if info.members > 1:
            cure = "raise the deadline, or write small members first"
            return warning(check, f"{text}: answers will be partial at best", cure)
        return problem(check, f"{text}: no answer will be in time", "raise the deadline, or serve a smaller network")
    if alone_s > ROOMY * limit_s:
        cure = "raise the deadline or make the network smaller; `timebound tune` tries more threads for one batch"
        return warning(check, f"{text}, which leaves little for others and for bad moments", cure)
    return ok(check, text)


def example(seen: Seen, config: Config) -> Iterator[Finding]:
    """Whether there is an example, and one that a client could send."""
    check = f"{seen.info.name} example"
    if seen.body_bytes > config.max_body:
        text = f"it has {seen.body_bytes:,} bytes and max_body is {config.max_body:,}"
        yield problem(check, text, "raise --max-body")
    elif not seen.has_example and seen.info.backend == "python":
        cure = "set `example` to a typical body: warm-up, figures and pages are made with it"
        yield warning(check, "there is none, and a made-up body was used", cure)


def fallback(seen: Seen, config: Config) -> Finding:
    """Whether there is an answer when time runs out."""
    check = f"{seen.info.name} fallback"
    if seen.fallback_error:
        return problem(check, f"it fails on the example: {seen.fallback_error}", "it must do without what load() sets")
    if seen.fallback_s is None:
        if seen.info.members > 1:
            return ok(check, "none; the members that are done answer when time is short")
        return warning(check, "there is none: when time runs out, requests are refused", "define `fallback` if you can")
    if seen.fallback_s > config.margin:
        text = f"it takes {seen.fallback_s * 1e3:.1f} ms, more than the margin of {config.margin * 1e3:g} ms"
        return warning(check, text, "make it cheaper: it is asked for when time is up")
    return ok(check, f"answers in {seen.fallback_s * 1e3:.2f} ms")


def habits(seen: Seen) -> Iterator[Finding]:
    """Stages that wait for others: a slot does nothing else meanwhile."""
    for habit in seen.habits:
        cure = "do it in load(), or have the client send what is needed; a slot stands still meanwhile"
        yield warning(f"{seen.info.name} waiting", habit, cure)


def room(seen: Sequence[Seen], config: Config, cores: int, available_mib: float) -> Finding:
    """Whether all workers fit into memory."""
    each = max(point.memory_mib for one in seen for point in one.points)
    is_parallel = all(one.info.is_parallel for one in seen)
    chosen = 1 if is_parallel or config.slots is not None else cores
    workers = config.workers or chosen
    needed = workers * each
    text = f"{workers} worker{'s' if workers > 1 else ''} of {each:.0f} MiB, {available_mib:,.0f} MiB available"
    if needed > available_mib:
        return problem("model memory", text, "serve with fewer --workers, or give the machine more memory")
    if needed > 0.7 * available_mib:
        return warning("model memory", f"{text}: tight once batches grow", "serve with fewer --workers")
    return ok("model memory", text)

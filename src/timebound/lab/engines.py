"""Which engines, or modes of torch, are tried on real servers: those that run here, answer alike and are faster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import msgspec

from timebound.lab.agreement import Agreement, reference_of
from timebound.lab.curve import Point
from timebound.lab.load.launch import run_program
from timebound.machine.processor import has_bf16
from timebound.scheduler.served import BATCH_SHARE
from timebound.types import COMPILE, OWN

# An engine must be faster than the model's own by this share to be tried on servers.
WORTH_TRYING = 0.03


class Means(msgspec.Struct, frozen=True):
    """What there is on this machine for engines to run on."""

    has_openvino: bool
    has_bf16: bool
    has_compiler: bool = True


class Judgement(msgspec.Struct, frozen=True):
    """What an engine's answers must be like: so large a share as the reference's, fractions within a tolerance."""

    share: float = 0.99
    tolerance: float = 0.05
    samples: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """How an engine did beside the reference, or why it could not be asked."""

    engine: str
    agreement: Agreement | None = None
    why_not: str = ""


def means() -> Means:
    """Those of this machine."""
    return Means(find_spec("openvino") is not None, has_bf16(), which(os.environ.get("CXX", "g++")) is not None)


def why_not(engine: str, here: Means, device: str = "cpu") -> str:
    """What keeps an engine from running here; empty if nothing does."""
    if engine.startswith("openvino") and not here.has_openvino:
        return "OpenVINO is not installed (pip install 'timebound[openvino]')"
    words = engine.split("+")
    if COMPILE in words and not here.has_compiler:
        return "there is no C++ compiler (apt-get install g++, or name one in CXX)"
    is_bf16 = engine == "openvino-bf16" or ("bfloat16" in words and device == "cpu")
    if is_bf16 and not here.has_bf16:
        return "this processor has no instructions for bf16 (avx512_bf16, amx_bf16)"
    return ""


def ask(path: Path, model: str, engine: str, judgement: Judgement, here: Means, *, device: str = "cpu") -> Verdict:
    """Compare an engine with the reference, in a process of its own: one that breaks down is only not taken."""
    if why := why_not(engine, here, device):
        return Verdict(engine, why_not=why)
    tolerance, samples = str(judgement.tolerance), judgement.samples
    ended = run_program("timebound.lab.agreement", str(path), model, engine, tolerance, samples)
    if ended.code:
        return Verdict(engine, why_not=ended.last_line)
    return Verdict(engine, msgspec.json.decode(ended.found[0], type=Agreement))


def reference_name(engine: str) -> str:
    """What it is compared with, in a sentence."""
    reference = reference_of(engine)
    return "the unchanged network" if reference == OWN else reference


def agrees(verdict: Verdict, judgement: Judgement) -> bool:
    """Whether an engine may be taken, if it is faster."""
    return verdict.agreement is not None and verdict.agreement.share >= judgement.share


def best_batch(points: Sequence[Point], deadline_s: float) -> Point:
    """The one that is cheapest per item, among those the server would run."""
    fitting = [point for point in points if point.seconds <= BATCH_SHARE * deadline_s] or points[:1]
    return min(fitting, key=lambda point: point.per_item_s)


def fastest(costs: Mapping[str, float], own: str) -> str | None:
    """The engine to try beside the model's own; None if none is faster."""
    best = min(costs, key=lambda engine: costs[engine])
    return best if best != own and costs[best] < costs[own] * (1 - WORTH_TRYING) else None


def is_beaten(engine: str, costs: Mapping[str, float]) -> bool:
    """Whether it compiles what is not the fastest without that: compiling takes long, so it is tried once."""
    words = engine.split("+")
    if words[-1] != COMPILE or not costs:
        return False
    return ("+".join(words[:-1]) or OWN) != min(costs, key=lambda each: costs[each])


def tell(verdict: Verdict, costs: Mapping[str, float], own: str, judgement: Judgement) -> str:
    """A verdict as a sentence."""
    found = verdict.agreement
    if found is None:
        return f"{verdict.engine} was not tried: {verdict.why_not}."
    copies = f", {found.copies} of them noisy copies" if found.copies else ""
    text = (
        f"{verdict.engine} answers {found.same} of {found.inputs} inputs ({found.share:.1%}{copies}) as "
        f"{reference_name(verdict.engine)} does; largest difference "
        f"{found.difference:.2g} in outputs up to {found.scale:.2g}"
    )
    if not agrees(verdict, judgement):
        return f"{text}: not taken, whatever its speed, for {judgement.share:.0%} must be the same."
    if verdict.engine not in costs:
        return f"{text}."
    known = "unchanged" if own == OWN else own
    speed = f"{costs[verdict.engine] * 1000:.2f} ms per item, {known} {costs[own] * 1000:.2f}"
    if verdict.engine == fastest(costs, own):
        return f"{text}: it may be taken and is the fastest ({speed}), so servers were tried with it."
    return f"{text}: it may be taken, but is not faster than the rest ({speed})."

"""Whether `timebound tune` finds good settings in good time, and a faster engine only where answers stay the same.

Tuned are the three networks of the other benchmarks with a fitted last layer (`fitted.py`), with 250 ms. Then twelve
settings written by hand, and those that were found, are offered the same overload in turns; `goodput` is the share of
it that was answered in time, partial answers by the share of their members. `engine_speedup` is what a closed loop is
served per second on the engine that was chosen, over the best of the settings with onnxruntime, in turns. Last, bf16 is
asked about the same networks with their random last layer, where answers hang on the last digits.

The exit code is 1 if tuning takes more than three minutes, if one of the twelve is better by more than 3 %, if the
engine is less than 1.4 times as fast where the processor has bf16 or bf16 is chosen where it has not, or if bf16 is
allowed for the networks with the random last layer.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.serving.goodput import build
from benchmarks.serving.plan_check import figures_of
from benchmarks.tools import fitted
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, finish, options_parser, say
from benchmarks.tools.contestants import ROOT
from benchmarks.tools.workload import MODELS_ENV
from timebound.lab import engines
from timebound.lab.agreement import REFERENCE
from timebound.lab.engines import Judgement, Verdict
from timebound.lab.load.launch import Served, serving
from timebound.lab.load.processes import ForeignLoad
from timebound.lab.tune import NOISE, Record, Settings

TUNED = ROOT / "benchmarks/serving/apps/fitted_app.py"
RANDOM = ROOT / "benchmarks/serving/apps/pictured_app.py"
MEMBERS = 3
BF16 = "openvino-bf16"
OVERLOAD = 1.3
CLIENTS = 32
LONGEST_TUNE_S = 180.0
LEAST_SPEEDUP = 1.4
BARS = (
    Bar("tune_seconds", at_most=LONGEST_TUNE_S),
    *zero("random_is_allowed", "chose_what_cannot_run"),
    # Two settings of twelve, each for less than a second.
    Bar("tune_over_grid", at_least=1.0, noise=NOISE, is_quick=False),
    Bar("engine_speedup", at_least=LEAST_SPEEDUP, is_quick=False),
)
# So far away that nothing has to be left out.
UNHURRIED = "5"

EXAMPLES = """\
examples:
  python benchmarks/serving/tune_check.py --quick
  python benchmarks/serving/tune_check.py --json tune.json
"""

Figures = dict[str, float | str]


@dataclass(frozen=True)
class Plan:
    """How long what is measured."""

    tune: tuple[str, ...]
    seconds: float
    # A server that knows nothing tries larger batches step by step.
    warm_up: str
    rounds: int
    grid: int
    # Turns of the engine that was chosen and of onnxruntime; none where their ratio is not judged.
    speed_turns: int


FULL = Plan(tune=(), seconds=3.0, warm_up="4s", rounds=2, grid=12, speed_turns=2)
QUICK = Plan(("--seconds", "300ms", "--rounds", "1"), seconds=0.6, warm_up="1s", rounds=1, grid=2, speed_turns=0)


def grid(has_rival: bool) -> list[Settings]:
    """Twelve settings as somebody would write them: six divisions on two engines, or twelve on one."""
    if has_rival:
        divisions = [(1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2), (2, 1, 1), (2, 2, 1)]
        return [Settings(*division, engine) for engine in (BF16, REFERENCE) for division in divisions]
    return [Settings(*division, REFERENCE) for division in product((1, 2), (1, 2, 3), (1, 2))]


class Check:
    """One run: tunes, then measures what was found beside the grid."""

    def __init__(self, plan: Plan, folder: Path, serve_args: Sequence[str]) -> None:
        self._plan = plan
        self._folder = folder
        self._serve_args = serve_args
        self._means = engines.means()

    def tune(self) -> tuple[Settings, float]:
        """Run the command, as a user would; what it wrote, and how long it took."""
        file = self._folder / "tuned.toml"
        program = Path(sys.executable).parent / "timebound"
        command = [str(program), "tune", str(TUNED), "--output", str(file), "--fresh", "--anyway", *self._plan.tune]
        environment = {**os.environ, "TIMEBOUND_PROFILES": str(self._folder / "profiles")}
        began = time.monotonic()
        subprocess.run(command, check=True, cwd=self._folder, env=environment, stdout=sys.stderr)
        took = time.monotonic() - began
        return Settings(**tomllib.loads(file.read_text())), took

    def serve(self, settings: Settings, *more: str) -> AbstractContextManager[Served]:
        """A server with these settings, which knows nothing of earlier ones."""
        return serving(TUNED, [*settings.flags, "--profiles", "none", *more, *self._serve_args])

    def served_rps(self, settings: Settings) -> float:
        """Full answers per second in a closed loop without hurry."""
        with self.serve(settings, "--deadline", UNHURRIED) as server:
            flags = ("--clients", str(CLIENTS), "--duration", f"{self._plan.seconds}s", "--warm-up", self._plan.warm_up)
            figures = figures_of(server.url, *flags)
        return figures["answered_rps"] * figures["full_share"]

    def goodput(self, settings: Settings, rate: float) -> float:
        """The share of an overload that is answered in time."""
        with self.serve(settings) as server:
            flags = ("--rate", f"{rate:.1f}", "--duration", f"{self._plan.seconds}s", "--warm-up", self._plan.warm_up)
            figures = figures_of(server.url, *flags)
        share = figures["mean_members"] / MEMBERS if figures["mean_members"] else 1.0
        found = figures["goodput_rps"] * share / rate
        say(f"  {settings}: {found:.3f} of {rate:.0f}/s")
        return found

    def beside_grid(self, tuned: Settings) -> tuple[float, int, dict[Settings, float]]:
        """The load, how many of the grid met it, and what was answered by those and by what was found."""
        written = grid(self._means.has_openvino and self._means.has_bf16)
        # A short run has to do with a few of them, spread over the list.
        written = written[:: len(written) // self._plan.grid]
        rate = max(1.0, OVERLOAD * self.served_rps(tuned))
        tried = list(dict.fromkeys([*written, tuned]))
        turns = [{settings: self.goodput(settings, rate) for settings in tried} for _ in range(self._plan.rounds)]
        return rate, len(written), {settings: mean(turn[settings] for turn in turns) for settings in tried}

    def speedup(self, tuned: Settings, best: Settings) -> tuple[float, float]:
        """Served per second with what was found, and with the best settings on onnxruntime."""
        turns = [(self.served_rps(tuned), self.served_rps(best)) for _ in range(self._plan.speed_turns)]
        return mean(turn[0] for turn in turns), mean(turn[1] for turn in turns)

    def verdict_of_tune(self) -> Verdict:
        """What the command found out about bf16, from the record that it keeps."""
        (state,) = (self._folder / "profiles").glob("tune-*.json")
        verdicts = msgspec.json.decode(state.read_bytes(), type=Record).verdicts
        return next(verdict for verdict in verdicts if verdict.engine == BF16)

    def verdict_on_random(self) -> Verdict:
        """What it would find out with the other benchmarks' networks."""
        return engines.ask(RANDOM, "", BF16, Judgement(), self._means)


def agreement_of(verdict: Verdict) -> Figures:
    """A verdict as figures; empty if the engine could not be asked."""
    alike = verdict.agreement
    if alike is None:
        return {}
    return {
        "agreement": alike.share,
        "agreement_inputs": alike.inputs,
        "agreement_difference": alike.difference,
        "is_allowed": float(engines.agrees(verdict, Judgement())),
    }


def run(options: argparse.Namespace) -> Figures:
    """Tune, then all comparisons."""
    build(options.models)
    say(f"fitted networks: {fitted.build(options.models):.3f} of new pictures right")
    os.environ[MODELS_ENV] = str(options.models)
    here, foreign = engines.means(), ForeignLoad()
    with tempfile.TemporaryDirectory(prefix="tune-check-") as folder:
        plan = QUICK if options.quick else FULL
        check = Check(plan, Path(folder), options.serve_args)
        say("timebound tune")
        tuned, took = check.tune()
        say(f"tuned in {took:.0f} s: {tuned}")
        rate, size, goodput = check.beside_grid(tuned)
        by_hand = {settings: share for settings, share in goodput.items() if settings != tuned} or goodput
        best = max(by_hand, key=lambda settings: by_hand[settings])
        plain = [settings for settings in goodput if settings.engine == REFERENCE]
        figures: Figures = {
            "tune_seconds": took,
            "tune_settings": str(tuned),
            "tune_goodput": goodput[tuned],
            "grid_best_settings": str(best),
            "grid_best_goodput": by_hand[best],
            "tune_over_grid": goodput[tuned] / by_hand[best],
            "grid_size": size,
            "offered_rps": rate,
            "has_openvino": float(here.has_openvino),
            "has_bf16": float(here.has_bf16),
            "engine": tuned.engine,
        }
        if tuned.engine == REFERENCE:
            figures["engine_speedup"] = 1.0
        elif plan.speed_turns:
            say(f"served per second: {tuned.engine} and {REFERENCE} in turns")
            ours, theirs = check.speedup(tuned, max(plain, key=lambda settings: goodput[settings]))
            figures |= {"engine_rps": ours, "onnxruntime_rps": theirs, "engine_speedup": ours / theirs}
        for name, verdict in (("", check.verdict_of_tune()), ("random_", check.verdict_on_random())):
            say(f"{name or 'fitted_'}networks: {engines.tell(verdict, {}, REFERENCE, Judgement())}")
            figures |= {f"{name}{key}": value for key, value in agreement_of(verdict).items()}
    figures["chose_what_cannot_run"] = float(tuned.engine == BF16 and not (here.has_openvino and here.has_bf16))
    return {**figures, "foreign_cpu": foreign.cores()}


def bars(figures: Figures) -> list[Bar]:
    """Those for this machine: without bf16 there is no engine so much faster."""
    has_bf16 = figures["has_openvino"] and figures["has_bf16"]
    return [bar for bar in BARS if has_bf16 or bar.name != "engine_speedup"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_parser(__doc__, EXAMPLES).parse_args(arguments)
    try:
        found = finish("tune_check", lambda: run(options))
    except Failed as failure:
        return failure.code
    figures = {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}
    for name, value in figures.items():
        print(f"{name:24}{value:>12}" if isinstance(value, str) else f"{name:24}{value:12,.3f}")
    return conclude("tune_check", options, figures, bars(figures))


if __name__ == "__main__":
    sys.exit(main())

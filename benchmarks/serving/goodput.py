"""How much is answered in time when there is too much to do: Timebound and FastAPI + uvicorn, real processes.

Parts: `ensemble` (three networks, fewer when time is short), `single` (the same three as one model with a fallback),
`recovery` (the ensemble before, during and after a threefold overload, drawn as a PNG), `fastapi` (the same traffic on
the peer), `text` (a small transformer, lengths 5 to 60, in a closed loop).

Capacity is what the server itself reaches in this run: closed loop, 50 requests under way, each with four deadlines,
only answers of full quality counted. A load of 1.5x is Poisson arrivals at 1.5 times that, in requests per second;
FastAPI gets the rates of the ensemble. The bare loop at its best batch size is measured in the same rounds and shown
beside it. Each attempt has 250 ms; then the client leaves and sends the same uuid again, up to two times.

The exit code is 1 if Timebound does not keep its bars. The model answers in time: with the ensemble 0.99 at 1.0x and
1.5x and 0.98 at 2.0x; with the single model full answers at 0.93 of its capacity, and every other request has its
fallback in time. None is late, without an answer, computed twice or wrong. Full quality is back within one deadline of
an overload. Texts reach 0.93 of the bare loop.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bare import BareLoop, ensemble_step, text_step
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.contestants import ROOT, fastapi, timebound
from benchmarks.tools.goodput_report import (
    FINE_S,
    CapacityTurn,
    Level,
    Recovery,
    Results,
    TextTurn,
    bins,
    figures,
    summarise,
    table,
)
from benchmarks.tools.load import EnsembleTraffic, TextTraffic, Traffic, answers_right, free_port, measure
from benchmarks.tools.openloop import DEADLINE_S, drive
from benchmarks.tools.plot import draw
from benchmarks.tools.processes import Server, StartError
from benchmarks.tools.seen import SEEN_ENV, count_seen, repeats
from benchmarks.tools.texts import load_texts
from benchmarks.tools.workload import MODELS_ENV, Sample, load_samples
from timebound.lab.load.processes import ForeignLoad
from timebound.lab.load.schedule import Phase

PARTS = ("ensemble", "single", "recovery", "fastapi", "text")
# Which app serves each image model.
APPS = {"ensemble": "anytime", "single": "single"}
CONCURRENCY = 50
# Four deadlines: nothing has to be left out. With more than eight the server takes it for bulk work and has larger
# batches, which the deadline of the levels does not allow.
UNHURRIED = "Timebound-Timeout-Ms: 1000\r\n"
TEXT_BATCHES = (1, 4, 8)
OVERLOAD = 3.0
USUAL_LOAD = 0.8
# Shares of a capacity move with the machine: two measurements of it, just before and after a level, differ by 4 %.
SHARE_NOISE = 0.02
BARS = (
    *zero("late", "unanswered", "computed_twice", "wrong"),
    Bar("in_time_by_model_1.0", at_least=0.99),
    Bar("in_time_by_model_1.5", at_least=0.99),
    Bar("in_time_by_model_2.0", at_least=0.98),
    *(Bar(f"single_fallback_in_time_{load}", at_least=1.0) for load in (1.0, 1.5, 2.0)),
    *(Bar(f"single_full_share_{load}", 0.93, noise=SHARE_NOISE, is_quick=False) for load in (1.0, 1.5, 2.0)),
    # After two seconds of overload little has piled up, and a second of full answers is half of what follows it.
    Bar("recovery_s", at_most=DEADLINE_S, is_quick=False),
    Bar("text_c50_ratio", at_least=0.93, noise=SHARE_NOISE, is_quick=False),
)
# Between two levels, so that each starts with an empty queue.
PAUSE_S = 0.3

EXAMPLES = """\
examples:
  python benchmarks/serving/goodput.py --quick
  python benchmarks/serving/goodput.py --json out.json --plot recovery.png
  python benchmarks/serving/goodput.py --quick --only ensemble,recovery
  python benchmarks/serving/goodput.py --only ensemble --levels 1.5 --seconds 5
"""


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long in seconds."""

    levels: dict[str, tuple[float, ...]]
    level_s: float
    rounds: int
    bare_s: float
    closed_s: float
    before_s: float
    overload_s: float
    after_s: float


FULL = Plan(
    levels={"ensemble": (0.8, 1.0, 1.5, 2.0), "single": (0.8, 1.0, 1.5, 2.0), "fastapi": (1.0, 1.5)},
    level_s=20.0,
    rounds=4,
    bare_s=2.0,
    closed_s=3.0,
    before_s=5.0,
    overload_s=10.0,
    after_s=5.0,
)
QUICK = Plan(
    levels={"ensemble": (1.0, 1.5), "single": (1.5,), "fastapi": (1.5,)},
    level_s=4.0,
    rounds=2,
    bare_s=0.6,
    closed_s=1.0,
    before_s=1.0,
    overload_s=2.0,
    after_s=2.0,
)


class Run:
    """One run of the benchmark: starts servers, measures, keeps the results."""

    def __init__(self, options: argparse.Namespace, plan: Plan) -> None:
        self._parts: list[str] = options.only
        self._models: Path = options.models
        self._serve_args: list[str] = options.serve_args
        self._seed: int = options.seed
        self._plan = plan
        self.results = Results()

    def all(self) -> Results:
        """Every part that was asked for."""
        if {"ensemble", "recovery", "fastapi"} & set(self._parts):
            self._images("ensemble")
        if "single" in self._parts:
            self._images("single")
        if "fastapi" in self._parts:
            self._fastapi()
        if "text" in self._parts:
            self._text()
        return self.results

    # ------------------------------------------------------------------ Timebound, pictures

    def _images(self, model: str) -> None:
        samples = load_samples(self._models)
        with tempfile.TemporaryDirectory(prefix="goodput-") as folder:
            port = free_port()
            traffic = EnsembleTraffic(port, samples)
            command = timebound(APPS[model], self._serve_args)
            with self._running(f"timebound, {model}", command, traffic, {SEEN_ENV: folder}):
                unhurried = EnsembleTraffic(port, samples, UNHURRIED)
                self._find_capacity(model, unhurried)
                if model in self._parts:
                    self._climb(model, traffic, unhurried)
                if model == "ensemble" and "recovery" in self._parts:
                    self._recover(traffic)
                seen = count_seen(Path(folder))
        self.results.computed[model] = seen.total()
        self.results.computed_twice[model] = repeats(seen)

    def _find_capacity(self, model: str, traffic: Traffic) -> None:
        """Server and bare loop in turn, so that noise hits both alike; the quieter half of the rounds counts."""
        say(f"{model}: capacity in a closed loop, c={CONCURRENCY}")
        measure(traffic, CONCURRENCY, 1.0)  # the server learns what batches cost
        rounds: list[CapacityTurn] = []
        with BareLoop(partial(ensemble_step, self._models)) as loop:
            for _ in range(self._plan.rounds):
                foreign = ForeignLoad()
                bare = loop.ceiling(self._plan.bare_s).rate
                rounds.append(CapacityTurn(self._closed_loop(traffic), bare, foreign.cores()))
        turn = self.results.keep_capacity(model, rounds)
        if not turn.served_rps:
            raise StartError(f"{model}: no full answer in a closed loop; wait until the machine is quiet")
        say(f"{model}: {turn.served_rps:.1f}/s, bare loop {turn.bare_rps:.1f}/s")

    def _closed_loop(self, traffic: Traffic) -> float:
        load = measure(traffic, CONCURRENCY, self._plan.closed_s)
        self.results.closed_loop_errors += load.errors
        self.results.needlessly_degraded += load.degraded
        return load.rps

    def _climb(self, name: str, traffic: Traffic, unhurried: Traffic) -> None:
        """Every level, and the capacity again after each: the machine is not equally fast all the time."""
        before = self.results.capacity[name]
        for load in self._plan.levels[name]:
            self._level(name, traffic, load)
            foreign = ForeignLoad()
            after = self._closed_loop(unhurried)
            self.results.capacity_foreign[name] = max(self.results.capacity_foreign[name], foreign.cores())
            say(f"  capacity {after:.1f}/s")
            self.results.capacity_beside.setdefault(name, []).append((before + after) / 2)
            before = self.results.capacity_after[name] = after

    def _level(self, name: str, traffic: Traffic, load: float) -> None:
        rate = load * self.results.capacity["single" if name == "single" else "ensemble"]
        say(f"{name}: {load:.1f}x, {rate:.0f}/s for {self._plan.level_s:.0f} s")
        time.sleep(PAUSE_S)
        foreign = ForeignLoad()
        record = drive(traffic, [Phase(rate, self._plan.level_s)], self._seed)
        self.results.levels.setdefault(name, []).append(_told(summarise(record, load, foreign.cores())))

    def _recover(self, traffic: Traffic) -> None:
        plan, capacity = self._plan, self.results.capacity["ensemble"]
        say(f"recovery: {USUAL_LOAD}x, then {plan.overload_s:.0f} s of {OVERLOAD:.0f}x, then {USUAL_LOAD}x")
        time.sleep(PAUSE_S)
        phases = [
            Phase(USUAL_LOAD * capacity, plan.before_s),
            Phase(OVERLOAD * capacity, plan.overload_s),
            Phase(USUAL_LOAD * capacity, plan.after_s),
        ]
        foreign = ForeignLoad()
        record = drive(traffic, phases, self._seed)
        self.results.recovery = Recovery(
            level=_told(summarise(record, 0.0, foreign.cores())),
            bins=bins(record),
            fine_bins=bins(record, FINE_S),
            overload_begins_s=plan.before_s,
            overload_ends_s=plan.before_s + plan.overload_s,
            capacity=capacity,
            last_degraded_s=max(
                (q.intended for q in record.questions if not q.attempts or q.attempts[0].quality != "full"), default=0.0
            ),
        )

    # ------------------------------------------------------------------ the peer, and texts

    def _fastapi(self) -> None:
        samples: Sequence[Sample] = load_samples(self._models)
        for load in self._plan.levels["fastapi"]:
            # A fresh one each time: long after a level it still works for clients that have gone.
            traffic = EnsembleTraffic(free_port(), samples)
            with self._running("fastapi", fastapi("ensemble"), traffic, {}, is_ours=False):
                self._level("fastapi", traffic, load)

    def _text(self) -> None:
        plan = self._plan
        traffic = TextTraffic(free_port(), load_texts(self._models))
        with (
            self._running("timebound, text", timebound("text", self._serve_args), traffic, {}),
            BareLoop(partial(text_step, self._models)) as loop,
        ):
            measure(traffic, CONCURRENCY, 1.0)  # the server learns what batches cost
            before = self._text_paces(loop)
            rounds = 2 * plan.rounds  # the ratio is close to what it should be at least, so it is to be a steady one
            for number in range(rounds):
                say(f"text: round {number + 1} of {rounds}")
                foreign = ForeignLoad()
                load = measure(traffic, CONCURRENCY, plan.closed_s)
                after = self._text_paces(loop)
                self.results.closed_loop_errors += load.errors
                bare_rps = {batch: (before[batch] + after[batch]) / 2 for batch in TEXT_BATCHES}
                self.results.text.append(TextTurn(load, bare_rps, foreign.cores()))
                before = after

    def _text_paces(self, loop: BareLoop) -> dict[int, float]:
        return {batch: loop.ceiling(self._plan.bare_s / 2, batch).rate for batch in TEXT_BATCHES}

    @contextmanager
    def _running(
        self, name: str, command: Sequence[str], traffic: Traffic, env: dict[str, str], is_ours: bool = True
    ) -> Iterator[None]:
        say(f"starting {name}")
        command = [*command, "--port", str(traffic.port)]
        with Server(name, command, {MODELS_ENV: str(self._models), **env}, lambda: answers_right(traffic)) as server:
            yield
            if is_ours:
                self.results.complaints += [f"{name}: {line}" for line in server.complaints()]


def _told(level: Level) -> Level:
    say(
        f"  in time by the model {level.in_time_by_model:.4f}, members {level.mean_members:.2f}, "
        f"late {level.late}, client {level.client_cpu:.2f} cores"
    )
    return level


def build(models: Path) -> None:
    """Build what is missing, in processes of their own: this one needs neither onnx nor onnxruntime."""
    for script in ("models.py", "transformer.py"):
        subprocess.run([sys.executable, str(ROOT / "benchmarks/tools" / script), str(models)], check=True, stdout=2)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser(__doc__, EXAMPLES)
    add_choice(parser, "--only", PARTS, "parts")
    parser.add_argument(
        "--levels",
        type=lambda text: tuple(float(level) for level in text.split(",")),
        metavar="LOADS",
        help="loads instead of the planned ones, such as 0.8,1.5; bars at other loads are not judged",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="length of each level")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals; default: %(default)s")
    parser.add_argument(
        "--plot",
        type=Path,
        default=ROOT / "benchmarks/out/recovery.png",
        metavar="FILE",
        help="where the recovery is drawn; default: %(default)s",
    )
    options = parser.parse_args(arguments)
    options.is_partial |= options.levels is not None
    return options


def make_plan(options: argparse.Namespace) -> Plan:
    """The plan as asked for."""
    plan = QUICK if options.quick else FULL
    levels = {name: options.levels or loads for name, loads in plan.levels.items()}
    return replace(plan, levels=levels, level_s=options.seconds or plan.level_s)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)

    def measured() -> Results:
        build(options.models)
        return Run(options, make_plan(options)).all()

    try:
        results = finish("goodput", measured)
    except Failed as failure:
        return failure.code
    print(table(results))
    for line in results.complaints[:20]:
        print(f"said by {line}", file=sys.stderr)
    if results.recovery:
        draw(results.recovery, options.plot)
        print(f"recovery drawn in {options.plot}")
    return conclude("goodput", options, figures(results), BARS)


if __name__ == "__main__":
    sys.exit(main())

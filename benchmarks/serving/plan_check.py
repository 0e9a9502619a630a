"""Whether `timebound plan` can be trusted: the largest rate it predicts for this machine, against the measured one.

Two models: `networks` (three small CNNs as one model) and `text` (a transformer, texts of 5 to 60 letters); two
deadlines each. Two servers of the same app are up side by side. One learns and leaves its profile, the other is judged.
They are asked in turns of a few seconds at the same rate, by the same client on the same cores, so whatever the client
takes and whatever disturbs the machine is in both. The rate goes up after a turn with 99 % in time and down after one
with less, by smaller and smaller steps. In the end the largest rate with 99 % in time is predicted from the profile
alone, and measured by the judged server's turns: a curve that never falls is laid through their misses; where it passes
1 % is the rate.
`foreign_cpu` is what other programs took meanwhile, in cores; a machine that others use tells little.

The exit code is 1 if the worst prediction (`plan_error_max`) is off by more than 15 %. --quick asks about one model and
one deadline, and too shortly to judge the prediction; --coarse asks about all of them in about 8 minutes.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.serving.goodput import build
from benchmarks.tools.bars import Bar, conclude
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.contestants import ROOT
from benchmarks.tools.processes import StartError
from benchmarks.tools.texts import load_texts
from benchmarks.tools.workload import MODELS_ENV
from timebound.lab.fleet import MachineType
from timebound.lab.load.launch import serving
from timebound.lab.load.processes import ForeignLoad
from timebound.lab.measured import choose
from timebound.lab.plan import Demand, World, largest_rates
from timebound.profile import ProfileFile, read_saved

MODELS = {"networks": "single_app.py", "text": "text_app.py"}
DEADLINES_MS = (250, 600)
GOODPUT = 0.99
BARS = (Bar("plan_error_max", at_most=0.15, is_quick=False),)
# Up and down by the first factor, by its square root after each turning back, and by no less than the last one.
FIRST_STEP, LAST_STEP = 1.3, 1.05
# The first rates rise faster, until less than this is in time: only then batches have grown as large as they will.
RAISE, SATURATED = 1.4, 0.95
MOST_RAISES = 10
CORES = len(os.sched_getaffinity(0))

EXAMPLES = """\
examples:
  python benchmarks/serving/plan_check.py --quick
  python benchmarks/serving/plan_check.py --only text --json plan.json
  python benchmarks/serving/plan_check.py --keep profiles/   then: timebound plan --profile profiles/text_250ms.json ...
"""


@dataclass(frozen=True)
class Length:
    """Of a run: turns of each server, and the seconds of one."""

    turns: int
    learn_s: float
    judge_s: float


QUICK, COARSE, FULL = Length(5, 1.0, 1.5), Length(12, 2.0, 3.0), Length(28, 3.0, 6.0)


@dataclass(frozen=True)
class Turn:
    """What the judged server did at a rate."""

    rate: float
    requests: float
    goodput: float
    client_cpu: float


class Case:
    """One model under one deadline."""

    def __init__(self, model: str, deadline_ms: int, folder: Path, length: Length) -> None:
        self.name = f"{model}_{deadline_ms}ms"
        self._app = ROOT / "benchmarks/serving/apps" / MODELS[model]
        self._deadline_s = deadline_ms / 1000
        self._folder = folder
        self._length = length
        self._bodies = _texts(folder) if model == "text" else []
        self.turns: list[Turn] = []

    @property
    def profile(self) -> Path:
        """Where the learning server leaves what it learned."""
        return ProfileFile(self._folder, self._app.resolve()).path

    @contextmanager
    def _serving(self, profiles: str) -> Iterator[str]:
        with serving(self._app, ["--deadline", str(self._deadline_s), "--profiles", profiles]) as server:
            yield server.url

    def _ask(self, url: str, seconds: float, *flags: str) -> dict[str, float]:
        return figures_of(url, *flags, "--duration", f"{seconds}s", "--deadline", f"{self._deadline_s}s", *self._bodies)

    def _turn(self, url: str, rate: float, seconds: float) -> Turn:
        """Requests of the first two deadlines do not count: they meet a server without a queue."""
        seed = str(len(self.turns) + 1)
        flags = ("--rate", f"{rate:.2f}", "--warm-up", f"{2 * self._deadline_s}s", "--seed", seed)
        found = self._ask(url, seconds, *flags)
        return Turn(rate, found["requests"], found["goodput"], found["client_cpu"])

    def run(self) -> None:
        """Both servers in turns; what was judged is in `turns`, what was learned in `profile`."""
        length = self._length
        with self._serving(str(self._folder)) as learning, self._serving("none") as judged:
            rate, step, was_enough = self._saturate(learning, judged), FIRST_STEP, False
            for _ in range(length.turns):
                self._turn(learning, rate, length.learn_s)
                foreign = ForeignLoad()
                turn = self._turn(judged, rate, length.judge_s)
                self.turns.append(turn)
                say(f"  {rate:,.1f}/s offered: {turn.goodput:.4f} in time, others took {foreign.cores():.2f} cores")
                is_enough = turn.goodput >= GOODPUT
                if is_enough != was_enough:
                    step = max(LAST_STEP, math.sqrt(step))
                rate, was_enough = rate * step if is_enough else rate / step, is_enough

    def _saturate(self, learning: str, judged: str) -> float:
        """Raise the rate until it is too much for the judged server."""
        length = self._length
        # Few enough that each is answered in time, enough that no slot waits.
        closed = [self._ask(url, length.learn_s, "--clients", str(2 * CORES)) for url in (learning, judged)]
        rate = max(1.0, closed[1]["goodput_rps"])
        for _ in range(MOST_RAISES):
            self._turn(learning, rate, length.learn_s)
            if self._turn(judged, rate, length.learn_s).goodput < SATURATED:
                break
            rate *= RAISE
        return rate

    def predict(self) -> float:
        """The largest rate, from the profile alone."""
        _, profile = choose(read_saved(self.profile), "")
        demand = Demand(rate=1.0, average=1.0, deadline_s=self._deadline_s, goodput=GOODPUT)
        return mean(largest_rates(World(profile, MachineType("here", CORES, 0.0), demand), demand.seeds))


def figures_of(url: str, *flags: str) -> dict[str, float]:
    """The figures of one level of `timebound bench`."""
    program = Path(sys.executable).parent / "timebound"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [str(program), "bench", url, *flags, "--json", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        figures: dict[str, float] = json.loads(file.read_text())["levels"][0]["figures"]
        return figures


def _texts(folder: Path) -> list[str]:
    """The flags that send texts of all lengths."""
    file = folder / "texts.jsonl"
    texts = load_texts(Path(os.environ[MODELS_ENV]))
    file.write_text("".join(json.dumps({"text": sample.text}) + "\n" for sample in texts))
    return ["--jsonl", str(file)]


def crossing(turns: Sequence[Turn], misses: float) -> float:
    """The rate at which the share of misses passes a bar.

    Misses rise with the rate, so neighbours that say otherwise are taken together (isotonic regression). Between the
    last group below the bar and the first one above, the share is taken to grow evenly.
    """
    groups: list[Turn] = []
    for turn in sorted(turns, key=lambda turn: turn.rate):
        group = turn
        while groups and groups[-1].goodput <= group.goodput:
            group = _together(groups.pop(), group)
        groups.append(group)
    below = [group for group in groups if 1 - group.goodput <= misses]
    above = [group for group in groups if 1 - group.goodput > misses]
    if not below:
        raise StartError("no turn had 99 % in time, at any rate; wait until the machine is quiet")
    if not above:
        raise StartError(f"{below[-1].rate:,.1f}/s were not too much yet; give it more turns")
    low, high = below[-1], above[0]
    return low.rate + (high.rate - low.rate) * (low.goodput + misses - 1) / (low.goodput - high.goodput)


def _together(one: Turn, other: Turn) -> Turn:
    requests = one.requests + other.requests

    def pooled(first: float, second: float) -> float:
        return (first * one.requests + second * other.requests) / requests

    return Turn(pooled(one.rate, other.rate), requests, pooled(one.goodput, other.goodput), 0.0)


def run(options: argparse.Namespace) -> dict[str, float]:
    """All models and deadlines."""
    build(options.models)
    os.environ[MODELS_ENV] = str(options.models)
    foreign, errors, clients = ForeignLoad(), [], []
    figures: dict[str, float] = {}
    length = QUICK if options.quick else COARSE if options.coarse else FULL
    # The faster model and the shorter deadline are enough to see that it runs.
    models = options.only[-1:] if options.quick else options.only
    deadlines = options.deadlines[:1] if options.quick else options.deadlines
    for model in models:
        for deadline_ms in deadlines:
            with tempfile.TemporaryDirectory(prefix="plan-") as folder:
                case = Case(model, deadline_ms, Path(folder), length)
                say(f"{model}, {deadline_ms} ms")
                case.run()
                predicted, measured = case.predict(), crossing(case.turns, 1 - GOODPUT)
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(case.profile, options.keep / f"{case.name}.json")
            errors.append(predicted / measured - 1)
            clients.append(mean(turn.client_cpu for turn in case.turns))
            say(f"{model}, {deadline_ms} ms: {predicted:,.1f}/s predicted, {measured:,.1f}/s measured")
            figures |= {
                f"{case.name}_predicted_rps": predicted,
                f"{case.name}_measured_rps": measured,
                f"{case.name}_error": errors[-1],
            }
    worst = max(map(abs, errors))
    return {**figures, "plan_error_max": worst, "client_cpu": mean(clients), "foreign_cpu": foreign.cores()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options_parser(__doc__, EXAMPLES)
    add_choice(parser, "--only", tuple(MODELS), "models")
    parser.add_argument("--deadlines", type=_milliseconds, default=DEADLINES_MS, metavar="MS", help="default: 250,600")
    parser.add_argument("--coarse", action="store_true", help="fewer and shorter turns; about 8 minutes")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the profiles there")
    options = parser.parse_args(arguments)
    try:
        figures = {name: round(value, 4) for name, value in finish("plan_check", lambda: run(options)).items()}
    except Failed as failure:
        return failure.code
    for name, value in figures.items():
        print(f"{name:32}{value:12,.3f}")
    return conclude("plan_check", options, figures, BARS)


def _milliseconds(text: str) -> list[int]:
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} must be milliseconds, such as 250,600")
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())

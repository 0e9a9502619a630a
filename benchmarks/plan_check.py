"""Whether `timebound plan` can be trusted: the largest rate it predicts for this machine, against the measured one.

For each model and deadline a server is offered more and more until it has enough, and stopped. From the profile that it
leaves, the largest rate with 99 % of the answers in time is predicted. Then rates around that are really offered, and
the largest one with 99 % in time is sought by halving. Client and server share the machine, as they did while it was
learned. `networks` needs the processor, and only a quiet machine tells anything about it; `accelerator` waits and
hardly needs any. `foreign_cpu` is what other programs took, in cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.contestants import ROOT
from benchmarks.goodput import build
from benchmarks.workload import MODELS_ENV
from timebound.lab.fleet import MachineType
from timebound.lab.load.launch import Served, serving
from timebound.lab.load.processes import ForeignLoad
from timebound.lab.plan import Demand, World, choose
from timebound.profile import ProfileFile, read_saved

MODELS = {"networks": "single_app.py", "accelerator": "accelerator_app.py"}
DEADLINES_MS = (250, 600)
GOODPUT = 0.99
BAR = 0.15
LOW, HIGH = 0.4, 1.6
# Rates are raised until less than this is in time: only then batches have grown as large as they will.
SATURATED = 0.97
MOST_RAISES = 10
CORES = len(os.sched_getaffinity(0))

EXAMPLES = """\
examples:
  python benchmarks/plan_check.py --quick
  python benchmarks/plan_check.py --only networks --json plan.json
"""


def figures_of(url: str, *flags: str) -> dict[str, float]:
    """The figures of one level of `timebound bench`."""
    program = Path(sys.executable).parent / "timebound"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [str(program), "bench", url, *flags, "--json", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        figures: dict[str, float] = json.loads(file.read_text())["levels"][0]["figures"]
        return figures


class Case:
    """One model under one deadline, with a folder for its profile."""

    def __init__(self, model: str, deadline_ms: int, folder: Path, seconds: float) -> None:
        self.model = model
        self._app = ROOT / "benchmarks/apps" / MODELS[model]
        self._deadline_s = deadline_ms / 1000
        self._folder = folder
        # Long enough that a queue left behind at the end is a small part.
        self._seconds = max(seconds, 10 * self._deadline_s)

    def _serving(self) -> AbstractContextManager[Served]:
        return serving(self._app, ["--deadline", str(self._deadline_s), "--profiles", str(self._folder)])

    def _in_time(self, url: str, rate: float) -> float:
        flags = ("--rate", f"{rate:.2f}", "--duration", f"{self._seconds}s", "--warm-up", f"{2 * self._deadline_s}s")
        figures = figures_of(url, *flags, "--deadline", f"{self._deadline_s}s")
        say(f"  {rate:,.1f}/s offered: {figures['goodput']:.4f} in time")
        return figures["goodput"]

    def learn(self) -> None:
        """Have a server learn its speed at about the load that it can take, and leave its profile."""
        with self._serving() as server:
            # Few enough that each is answered in time, enough that no slot waits.
            closed = figures_of(server.url, "--clients", str(2 * CORES), "--duration", f"{self._seconds}s")
            rate = max(1.0, closed["goodput_rps"])
            for _ in range(MOST_RAISES):
                if self._in_time(server.url, rate) < SATURATED:
                    break
                rate *= 1.6

    def predict(self) -> float:
        """The largest rate, from the profile alone."""
        saved = read_saved(ProfileFile(self._folder, self._app.resolve()).path)
        _, profile = choose(saved, "")
        here = MachineType("here", CORES, 0.0)
        demand = Demand(rate=1.0, average=1.0, deadline_s=self._deadline_s, goodput=GOODPUT)
        world = World(profile, here, demand)
        first = world.most(demand.seeds[0])
        rates = [first, *(world.most(seed, first) for seed in demand.seeds[1:])]
        return sum(rates) / len(rates)

    def measure(self, predicted: float, halvings: int) -> float:
        """The largest rate that is really answered, sought around the prediction; the ends say that it lies beyond."""
        low, high = LOW * predicted, HIGH * predicted
        with self._serving() as server:
            for _ in range(halvings):
                middle = (low + high) / 2
                low, high = (middle, high) if self._in_time(server.url, middle) >= GOODPUT else (low, middle)
        return (low + high) / 2


def run(options: argparse.Namespace) -> dict[str, float]:
    """All models and deadlines."""
    build(options.models)
    os.environ[MODELS_ENV] = str(options.models)
    foreign, errors = ForeignLoad(), []
    figures: dict[str, float] = {}
    for model in options.only:
        for deadline_ms in DEADLINES_MS:
            with tempfile.TemporaryDirectory(prefix="plan-") as folder:
                case = Case(model, deadline_ms, Path(folder), 2.5 if options.quick else 8.0)
                say(f"{model}, {deadline_ms} ms: learning")
                case.learn()
                predicted = case.predict()
                say(f"{model}, {deadline_ms} ms: {predicted:,.1f}/s predicted")
                measured = case.measure(predicted, 4 if options.quick else 6) if predicted else 0.0
            # Nothing predicted where something was learned is as wrong as can be.
            errors.append(abs(predicted / measured - 1) if measured else 1.0)
            name = f"{model}_{deadline_ms}ms"
            figures |= {
                f"{name}_predicted_rps": predicted,
                f"{name}_measured_rps": measured,
                f"{name}_error": errors[-1],
            }
    return {**figures, "plan_error_max": max(errors), "foreign_cpu": foreign.cores()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options_parser(__doc__, EXAMPLES)
    add_choice(parser, "--only", tuple(MODELS), "models")
    options = parser.parse_args(arguments)
    try:
        figures = {name: round(value, 4) for name, value in finish("plan_check", lambda: run(options)).items()}
    except Failed as failure:
        return failure.code
    for name, value in figures.items():
        print(f"{name:32}{value:12,.3f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if figures["plan_error_max"] > BAR:
        print(
            f"plan_check: the worst prediction is off by {figures['plan_error_max']:.0%}, more than {BAR:.0%}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

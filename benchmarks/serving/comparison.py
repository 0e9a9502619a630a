"""Everyday use beside others: what a user types and writes, and how long it takes to the first answer.

Two apps, written for each contestant as its documentation would have it (benchmarks/serving/apps/compared): hello, and
a small network of torch. Lines are those with code. Seconds count from the command to the first right answer: the
median of several starts, in turns, after one that is not counted. Each peer is installed from the package registry into
an environment of its own, which is kept; one that cannot be installed is said. Timebound runs from the environment of
the benchmark itself. A run of all contestants writes the tables of docs/comparison.md.

The exit code is 1 if one that was installed gives no right answer, if Timebound's hello takes longer than a second or
longer than that of the fastest other model server (LitServe, BentoML, Ray Serve), or if another has fewer lines.

--quick starts each once, counts that, and writes no page.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.peers.__main__ import machine
from benchmarks.peers.environments import NotInstalled, default_folder, installed_version, provide
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.compared import APPS, COMPARED, App, Compared
from benchmarks.tools.comparison_page import Findings, render, written
from benchmarks.tools.contestants import ROOT
from benchmarks.tools.load import free_port
from benchmarks.tools.processes import Server, StartError
from timebound import __version__

MODEL_SERVERS = ("litserve", "bentoml", "ray")
PAGE = ROOT / "docs/comparison.md"

BARS = (
    *zero("unanswered"),
    Bar("hello_s_timebound", at_most=1.0, is_quick=False),
    Bar("hello_over_model_servers", at_most=1.0, is_quick=False),
    Bar("hello_lines_over_fewest", at_most=1.0),
)

EXAMPLES = """\
examples:
  python benchmarks/serving/comparison.py                 # all; writes the tables of docs/comparison.md
  python benchmarks/serving/comparison.py --only timebound,fastapi --quick
"""

# A program of its own: torch is not to be loaded beside the clock. The signal is one of many; the answer depends on it.
_WEIGHTS = """
import json, sys
import torch
from net import Net
torch.manual_seed(0)
net = Net().eval()
torch.save(net.state_dict(), sys.argv[1])
signal = [round(value, 3) for value in torch.randn(64).tolist()]
print(json.dumps({"signal": signal, "class": int(net(torch.tensor([signal])).argmax())}))
"""


def make_apps(weights: Path) -> tuple[App, App]:
    """Both apps; the weights of the network are written to a file."""
    command = [sys.executable, "-c", _WEIGHTS, str(weights)]
    made = subprocess.run(command, cwd=APPS / "shared", check=True, capture_output=True, text=True)
    known = json.loads(made.stdout)
    return (
        App("hello", "hello", {"name": "you"}, {"hello": "you"}),
        App("network", "torch model", {"signal": known["signal"]}, {"class": known["class"]}),
    )


def provided(contestant: Compared, folder: Path) -> tuple[Path | None, str]:
    """Its environment (None: this one) and its version."""
    if contestant.environment is None:
        return None, __version__
    say(f"environment of {contestant.title}: {contestant.environment.name}")
    place = provide(contestant.environment, folder)
    return place, installed_version(place, contestant.package)


def provide_all(names: Sequence[str], folder: Path, log: Path) -> tuple[dict[str, Path | None], Findings]:
    """An environment for each that can have one; what came of it is told in a log."""
    places: dict[str, Path | None] = {}
    findings = Findings()
    told = []
    for name in names:
        contestant, began = COMPARED[name], time.perf_counter()
        try:
            places[name], findings.versions[name] = provided(contestant, folder)
            told.append(
                f"{name} {findings.versions[name]}: {time.perf_counter() - began:.1f} s, {places[name] or sys.prefix}"
            )
        except NotInstalled as why:
            findings.absent[name] = f"not installed: {why}"
            told.append(f"{name}: not installed: {why}")
            print(told[-1])
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join(told) + "\n")
    return places, findings


def first_answer_s(contestant: Compared, app: App, place: Path | None, weights: Path) -> float:
    """Start it in a folder as a user has it, until its first right answer."""
    with tempfile.TemporaryDirectory(prefix="compared-") as folder:
        port = free_port()
        contestant.lay_out(app.name, Path(folder), weights, port)
        command = contestant.command(app.name, place, port)
        with Server(
            f"{contestant.title}, {app.title}",
            command,
            contestant.env,
            partial(contestant.answers, app, port),
            folder=Path(folder),
        ) as server:
            return server.first_answer_s


def measure(options: argparse.Namespace) -> Findings:
    """Install, then start everything in turns."""
    places, findings = provide_all(options.only, options.envs, options.log)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "net.pth"
        apps = make_apps(weights)
        # The first start of each reads its files from the disk and compiles them.
        for turn in range(1 if options.quick else 1 + options.starts):
            for name, place in places.items():
                for app in apps:
                    if name in findings.absent:
                        continue
                    try:
                        seconds = first_answer_s(COMPARED[name], app, place, weights)
                    except StartError as why:
                        findings.absent[name] = str(why)
                        print(why)
                        continue
                    say(f"{COMPARED[name].title}, {app.title}: {seconds:.2f} s")
                    if turn or options.quick:
                        findings.seconds.setdefault((name, app.name), []).append(seconds)
    return findings


def figures(findings: Findings) -> dict[str, float]:
    """Medians, lines, commands, and Timebound beside the others."""
    found: dict[str, float] = {}
    for (name, app), seconds in findings.seconds.items():
        if name not in findings.absent:
            found[f"{app}_s_{name}"] = median(seconds)
    for app in ("hello", "network"):
        others = [found[key] for name in MODEL_SERVERS if (key := f"{app}_s_{name}") in found]
        ours = found.get(f"{app}_s_timebound")
        if ours and others:
            found[f"{app}_over_model_servers"] = ours / min(others)
        found |= {f"{app}_lines_{name}": each.lines(app) for name, each in COMPARED.items()}
    found |= {f"commands_{name}": len(each.typed("hello")) for name, each in COMPARED.items()}
    fewest = min(each.lines("hello") for each in COMPARED.values())
    return {
        **found,
        "hello_lines_over_fewest": COMPARED["timebound"].lines("hello") / fewest,
        "unanswered": len(findings.absent.keys() & findings.versions.keys()),
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for."""
    parser = options_parser(__doc__, EXAMPLES)
    add_choice(parser, "--only", tuple(COMPARED), "contestants")
    parser.add_argument(
        "--starts", type=int, default=5, metavar="N", help="starts that count, of each app; default: %(default)s"
    )
    parser.add_argument(
        "--envs",
        type=Path,
        default=default_folder(),
        metavar="FOLDER",
        help="where the environments of the peers are; default: %(default)s",
    )
    parser.add_argument(
        "--log",
        type=Path,
        default=ROOT / "benchmarks/out/comparison/install.log",
        metavar="FILE",
        help="what became of each environment; default: %(default)s",
    )
    parser.add_argument(
        "--page", type=Path, default=PAGE, metavar="FILE", help="whose tables a full run writes; default: %(default)s"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the page, and hold the figures to the bars."""
    options = parse(arguments)
    try:
        findings = finish("comparison", partial(measure, options))
    except Failed as failure:
        return failure.code
    found = figures(findings)
    tables = render(findings, found, how(1 if options.quick else options.starts))
    print(tables)
    if not options.quick and not options.is_partial:
        options.page.write_text(written(options.page.read_text(), tables))
        print(f"wrote the tables of {options.page}")
    return conclude("comparison", options, found, BARS)


def how(starts: int) -> str:
    """On what it was measured, when, and how often."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return (
        f"Measured on {machine()}, on {day}. Seconds are the median of {starts} {'start' if starts == 1 else 'starts'}."
    )


if __name__ == "__main__":
    sys.exit(main())

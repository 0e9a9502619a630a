"""The same work on other model servers: Timebound beside what else there is, untuned and tuned by hand.

Each peer is installed from the package registry into an environment of its own, which is kept. Scenes: a closed loop
at 1, 10 and 50; overload (Poisson arrivals at 0.8, 1.0, 1.5 and 2 times what the bare loop reaches in this run;
clients leave at 250 ms and send again, twice); 8 broken pictures among 64; SIGKILL to a worker at half load; memory;
time to the first answer. At the end Timebound and the two fastest peers run in turn. Goodput is the share of requests
that the model answered right within 250 ms of one of the three attempts; a fallback does not count. `worked` is how
many pictures the networks worked on per such answer, at the worst level; `kill` is the goodput and `failed` the number
of failed attempts after the kill.

The exit code is 1 if Timebound's goodput is not 1.7 times that of the best untuned peer at 1.0x, 1.5x and 2.0x and that
of the best tuned one at 1.5x and 2.0x, or its closed loop not 0.97 of the fastest.

--quick takes timebound and mosec, at 1.0x and 1.5x for 3 s, without the kill.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.peers.contest import FULL, QUICK, Contest, Plan
from benchmarks.peers.environments import default_folder
from benchmarks.peers.record import Run, read_run
from benchmarks.peers.report import BARS, figures, table
from benchmarks.peers.roster import CONTESTANTS
from benchmarks.tools.bars import conclude
from benchmarks.tools.commandline import Failed, finish, names, options_parser
from benchmarks.tools.contestants import ROOT

EXAMPLES = """\
examples:
  python -m benchmarks.peers                          # all, about 20 minutes once the environments are there
  python -m benchmarks.peers --quick
  python -m benchmarks.peers --only timebound,mosec,mosec-tuned --seconds 5
  python -m benchmarks.peers --table benchmarks/out/peers --json out.json
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser(__doc__, EXAMPLES)
    parser.add_argument(
        "--only",
        type=lambda text: names(tuple(CONTESTANTS), text),
        metavar="NAMES",
        help=f"contestants, of {','.join(CONTESTANTS)}; default: all",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="length of each level")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals; default: %(default)s")
    parser.add_argument(
        "--envs",
        type=Path,
        default=default_folder(),
        metavar="FOLDER",
        help="where the environments of the peers are; default: %(default)s",
    )
    parser.add_argument(
        "--raw",
        type=Path,
        default=ROOT / "benchmarks/out/peers",
        metavar="FOLDER",
        help="where everything measured is kept, one file per contestant; default: %(default)s",
    )
    parser.add_argument("--table", type=Path, metavar="FOLDER", help="measure nothing: show what a run kept there")
    options = parser.parse_args(arguments)
    options.is_partial = bool(options.only or options.table)  # what a run kept may be of some contestants only
    return options


def make_plan(options: argparse.Namespace) -> Plan:
    """The plan as asked for."""
    plan = QUICK if options.quick else FULL
    seconds = options.seconds
    return replace(plan, level_s=seconds or plan.level_s, edge_s=seconds or plan.edge_s)


def machine() -> str:
    """What it was measured on."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def show(run: Run, options: argparse.Namespace) -> int:
    """The table, the figures and the bars; the exit code."""
    print(table(run))
    return conclude("peers", options, figures(run), BARS)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.table:
        return show(read_run(options.table), options)
    plan = make_plan(options)
    options.only = options.only or list(plan.contestants)
    run = Run(machine(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), plan.level_s)

    def measured() -> None:
        build = [sys.executable, str(ROOT / "benchmarks/tools/models.py"), str(options.models)]
        subprocess.run(build, check=True, stdout=2)
        Contest(options, plan, run).measure()

    code = 0
    try:
        finish("peers", measured)
    except Failed as failure:
        code = failure.code
    finally:
        # After an interruption too.
        missed = show(run, options)
    return code or missed


if __name__ == "__main__":
    sys.exit(main())

"""What watching costs: open tabs of the live page, the history, and traces.

The echo is asked at concurrency 64, by turns with five tabs open and with none. A tab is what a browser's tab asks for:
the stream, the past and the last decisions once, and drift and versions every five seconds. Then two servers, one with
a history, are asked 2,000 times a second, one after the other; what each answered is compared, how much later 99 of 100
answers come, and every full answer is looked for in the files. `journal_echo_ratio` is the same at concurrency 64, as
fast as they can, by turns: there the history's thread takes processor time from the gateway. Before the other's turn it
writes what still waits, or it would take that time from the other; `journal_echo_kept` is the share that got into the
files, for what comes too fast is left out and counted. Last, four servers are asked at concurrency 64 by turns: two
without traces, one that sends those of 1 % of its requests to a collector, and one whose collector is dead.
`control_ratio` is what the two equal ones differ by, the noise of the others; `late` are answers with the dead
collector that took longer than the model's deadline.

The exit code is 1 if a bar does not hold: the echo with tabs at 0.97 of none, the history too, traces too, also with a
dead collector, no request lost, none late, no trace dropped.
"""

import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, finish, options_parser, say
from benchmarks.tools.contestants import timebound
from benchmarks.tools.load import EchoTraffic, Load, answers_right, free_port, measure_echo
from benchmarks.tools.openloop import drive
from benchmarks.tools.processes import Server
from timebound.lab.load.attempts import End
from timebound.lab.load.schedule import Phase
from timebound.lab.simulate import quantile
from timebound.observe.filter import filter_of
from timebound.observe.history import History

BARS = (
    *zero("errors", "lost", "late", "traces_dropped"),
    Bar("tabs_ratio", at_least=0.97, is_quick=False),
    Bar("journal_ratio", at_least=0.97, is_quick=False),
    Bar("journal_p99_more_ms", at_most=5.0, is_quick=False),
    Bar("journal_echo_ratio", at_least=0.75, is_quick=False),
    Bar("traces_ratio", at_least=0.97, is_quick=False),
    Bar("dead_collector_ratio", at_least=0.97, is_quick=False),
)
TABS = 5
PANELS_EVERY_S = 5.0
"""As `EVERY_MS` in versions.js."""
RATE = 2000.0
TOKEN = "watched"

COLLECTOR = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *said):
        pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Collector).serve_forever()
"""
"""Takes whatever it is sent."""

EXAMPLES = """\
examples:
  python benchmarks/serving/watched.py --quick
  python benchmarks/serving/watched.py --json out.json
"""


class Tab:
    """Asks for what a browser's tab of the live page asks for: the stream by curl, the rest by a thread."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/live"
        self._header = {"Authorization": f"Bearer {TOKEN}"}
        self._is_over = threading.Event()
        command = ["curl", "-sN", "-H", f"Authorization: Bearer {TOKEN}", self._url]
        self._stream = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        for path in ("past", "decisions"):
            self._read(path)
        is_first = True
        while is_first or not self._is_over.wait(PANELS_EVERY_S):
            is_first = False
            for path in ("drift", "versions"):
                self._read(path)

    def _read(self, path: str) -> None:
        asked = urllib.request.Request(f"{self._url}/{path}", headers=self._header)
        with urllib.request.urlopen(asked) as answer:
            answer.read()

    def close(self) -> None:
        """Leave."""
        self._is_over.set()
        self._stream.kill()
        self._stream.wait()
        self._thread.join()


@contextmanager
def tabs(port: int) -> Iterator[None]:
    """Five tabs of the live page; they ask for what they show at first before the measurement begins."""
    readers = [Tab(port) for _ in range(TABS)]
    time.sleep(1.0)  # each has its first message
    try:
        yield
    finally:
        for reader in readers:
            reader.close()


def started(name: str, traffic: EchoTraffic, serve_args: Sequence[str], *more: str) -> Server:
    """An echo with an admin token, and whatever else."""
    say(f"starting {name}")
    command = [*timebound("echo", serve_args), "--admin-token", TOKEN, "--port", str(traffic.port), *more]
    return Server(name, command, {}, partial(answers_right, traffic))


def compare_tabs(rounds: int, seconds: int, serve_args: Sequence[str]) -> tuple[list[Load], list[Load]]:
    """The echo with tabs open, and with none, by turns."""
    traffic = EchoTraffic(free_port())
    watched: list[Load] = []
    alone: list[Load] = []
    with started("echo", traffic, serve_args):
        measure_echo(traffic, 64, seconds)
        for number in range(rounds):
            say(f"tabs: round {number + 1} of {rounds}")
            for is_watched in (True, False) if number % 2 == 0 else (False, True):
                if is_watched:
                    with tabs(traffic.port):
                        watched.append(measure_echo(traffic, 64, seconds))
                else:
                    alone.append(measure_echo(traffic, 64, seconds))
    return watched, alone


def compare_journal(
    seconds: float, rounds: int, echo_seconds: int, serve_args: Sequence[str], folder: Path
) -> dict[str, float]:
    """A server with a history and one without, at a fixed rate and as fast as they can."""
    kept, plain = EchoTraffic(free_port()), EchoTraffic(free_port())
    with (
        started("echo with a history", kept, serve_args, "--history", str(folder)),
        started("echo without", plain, serve_args),
    ):
        before = _kept(folder)
        say(f"{RATE:.0f} requests/s for {seconds:g} s each")
        without, with_it = (_answered(traffic, seconds) for traffic in (plain, kept))
        time.sleep(2.0)  # what came last is written
        lost = len(with_it) - (_kept(folder) - before)
        echo, kept_share = _compare_echo(kept, plain, rounds, echo_seconds)
    return {
        "journal_ratio": len(with_it) / max(1, len(without)),
        "journal_p99_more_ms": 1e3 * (quantile(with_it, 0.99) - quantile(without, 0.99)),
        "journal_rows": _kept(folder),
        "lost": max(0, lost),
        "journal_echo_ratio": echo,
        "journal_echo_kept": kept_share,
    }


def _compare_echo(kept: EchoTraffic, plain: EchoTraffic, rounds: int, seconds: int) -> tuple[float, float]:
    """Rates with a history over those without, by turns; and which share of the outcomes got into the files."""
    rates: dict[str, list[float]] = {"kept": [], "plain": []}
    before = _history(kept.port)
    for number in range(rounds):
        say(f"history: round {number + 1} of {rounds}")
        for name in ("kept", "plain") if number % 2 == 0 else ("plain", "kept"):
            rates[name].append(measure_echo(kept if name == "kept" else plain, 64, seconds).rps)
            _wait_until_written(kept.port)
    written, dropped = (after - b for after, b in zip(_history(kept.port), before, strict=True))
    ratio = median(one / other for one, other in zip(rates["kept"], rates["plain"], strict=True))
    return ratio, written / max(1.0, written + dropped)


def _history(port: int) -> tuple[float, ...]:
    """Outcomes that were written, and those that were left out."""
    return tuple(_count(port, f"timebound_history_{name}_total") for name in ("written", "dropped"))


def _wait_until_written(port: int) -> None:
    """Return when nothing more comes into the files."""
    before = None
    while (now := _history(port)) != before:
        before = now
        time.sleep(1.0)


@contextmanager
def collector(port: int) -> Iterator[None]:
    """Somebody who takes traces."""
    process = subprocess.Popen([sys.executable, "-c", COLLECTOR, str(port)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def compare_traces(rounds: int, seconds: int, serve_args: Sequence[str]) -> tuple[dict[str, float], int]:
    """The echo without traces, with a collector, and with a dead one, by turns; and how many errors there were."""
    plain, control, traced, dead = (EchoTraffic(free_port()) for _ in range(4))
    port, nobody = free_port(), free_port()
    loads: dict[str, list[Load]] = {"plain": [], "control": [], "traced": [], "dead": []}
    with (
        collector(port),
        started("echo without traces", plain, serve_args),
        started("another one without traces", control, serve_args),
        started("echo with traces", traced, serve_args, "--traces", f"http://127.0.0.1:{port}"),
        started("echo with a dead collector", dead, serve_args, "--traces", f"http://127.0.0.1:{nobody}"),
    ):
        turns = {"plain": plain, "control": control, "traced": traced, "dead": dead}
        for traffic in turns.values():
            measure_echo(traffic, 64, 1)
        for number in range(rounds):
            say(f"traces: round {number + 1} of {rounds}")
            for name in list(turns) if number % 2 == 0 else reversed(turns):
                loads[name].append(measure_echo(turns[name], 64, seconds))
        time.sleep(2.0)  # what came last is sent
        sent, dropped = (_count(traced.port, f"timebound_{name}_total") for name in ("traces_sent", "traces_dropped"))
        late = _count(dead.port, 'timebound_due_total{in_time="no",model="echo",version="1"}')
    paces = {name: [load.rps for load in found] for name, found in loads.items()}
    against = {
        name: median(a / b for a, b in zip(paces[name], paces["plain"], strict=True))
        for name in ("control", "traced", "dead")
    }
    figures = {
        "traces_ratio": against["traced"],
        "dead_collector_ratio": against["dead"],
        "control_ratio": against["control"],
        "late": late,
        "traces_sent": sent,
        "traces_dropped": dropped,
    }
    return figures, sum(load.errors for found in loads.values() for load in found)


def _count(port: int, name: str) -> float:
    """A metric, 0 if it was never counted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        found = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def _answered(traffic: EchoTraffic, seconds: float) -> list[float]:
    """How long each took that was answered."""
    record = drive(traffic, [Phase(rate=RATE, seconds=seconds)], seed=1)
    return sorted(question.latency for question in record.questions if question.last.end is End.ANSWERED)


def _kept(folder: Path) -> int:
    """Full answers in the files: refusals and fallbacks stand for none that was lost."""
    return sum(count for _, count in History(folder).counts(filter_of({"quality": "full"}), "model"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and hold the figures to the bars."""
    options = options_parser(__doc__, EXAMPLES).parse_args(arguments)
    rounds, seconds = (2, 1) if options.quick else (9, 3)

    def run() -> dict[str, float]:
        watched, alone = compare_tabs(rounds, seconds, options.serve_args)
        with tempfile.TemporaryDirectory() as folder:
            journal = compare_journal(
                5.0 if options.quick else 120.0, rounds, seconds, options.serve_args, Path(folder)
            )
        traces, errors = compare_traces(rounds, seconds, options.serve_args)
        return {
            "alone_rps": median(load.rps for load in alone),
            "watched_rps": median(load.rps for load in watched),
            "tabs_ratio": median(a.rps / b.rps for a, b in zip(watched, alone, strict=True)),
            **journal,
            **traces,
            "errors": errors + sum(load.errors for load in [*watched, *alone]),
        }

    try:
        figures = finish("watched", run)
    except Failed as failure:
        return failure.code
    for name, figure in figures.items():
        print(f"{name:18} {figure:12,.3f}")
    return conclude("watched", options, figures, BARS)


if __name__ == "__main__":
    sys.exit(main())

"""What waiting for the world costs: 200 requests at once whose `fetch` takes 300 ms, on a server with one slot.

Beside them one request that waits for nothing: it is answered at once if they hold no slot. Each round opens its
connections first and sends all requests at one moment; the figures are medians of the rounds.

The exit code is 1 if the 200 take more than a second, if the one beside them takes as long as they wait, or if an
answer is wrong, missing or not the model's.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, finish, options_parser, say
from benchmarks.tools.contestants import timebound
from benchmarks.tools.load import free_port
from benchmarks.tools.processes import Server
from timebound import AsyncClient, Client, RequestError

AT_ONCE, WAIT_S = 200, 0.3
BARS = (*zero("fetch_errors"), Bar("fetch_200_s", at_most=1.0), Bar("fetch_beside_s", at_most=0.3))
ROUNDS, QUICK_ROUNDS = 15, 3

EXAMPLES = """\
examples:
  python benchmarks/serving/fetching.py --quick
  python benchmarks/serving/fetching.py --json out.json
"""


@dataclass(frozen=True)
class Round:
    """Seconds until all 200 were answered, until the one beside them was, and answers that were not right."""

    all_s: float
    beside_s: float
    errors: int


async def flood(url: str) -> Round:
    """One round; a connection for each request is open before it starts."""
    async with AsyncClient(url, connections=AT_ONCE + 1, deadline=5.0, retries=0) as client:

        async def ask(number: int, wait_s: float) -> tuple[float, bool]:
            try:
                answer = await client.ask("waits", {"number": number, "wait_s": wait_s}, key=None)
            except RequestError:
                return time.perf_counter(), False
            return time.perf_counter(), (answer.value, answer.quality) == ({"number": number}, "full")

        await asyncio.gather(*(ask(number, 0.05) for number in range(AT_ONCE + 1)))
        began = time.perf_counter()
        waiting = [asyncio.create_task(ask(number, WAIT_S)) for number in range(AT_ONCE)]
        beside_at, is_right = await asyncio.create_task(ask(AT_ONCE, 0.0))
        answers = await asyncio.gather(*waiting)
    errors = [right for _, right in answers].count(False) + (not is_right)
    return Round(max(at for at, _ in answers) - began, beside_at - began, errors)


def run(options: argparse.Namespace) -> list[Round]:
    """The server with its one slot, and the rounds."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with suppress(RequestError), Client(url, deadline=1.0, retries=0) as client:
            return bool(client.ask("waits", {"number": 1, "wait_s": 0.0}).value == {"number": 1})
        return False

    command = [*timebound("fetch", ["--workers", "1", "--slots", "1", *options.serve_args]), "--port", str(port)]
    rounds = []
    with Server("timebound", command, {}, answers):
        for number in range(QUICK_ROUNDS if options.quick else ROUNDS):
            say(f"round {number + 1}: {AT_ONCE} requests that wait {WAIT_S:g} s")
            rounds.append(asyncio.run(flood(url)))
    return rounds


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_parser(__doc__, EXAMPLES).parse_args(arguments)
    try:
        rounds = finish("fetching", lambda: run(options))
    except Failed as failure:
        return failure.code
    figures: dict[str, float | str] = {
        "fetch_200_s": round(median(each.all_s for each in rounds), 3),
        "fetch_200_worst_s": round(max(each.all_s for each in rounds), 3),
        "fetch_beside_s": round(median(each.beside_s for each in rounds), 3),
        "fetch_errors": sum(each.errors for each in rounds),
    }
    print("\n".join(f"{name:20}{figure:>8}" for name, figure in figures.items()))
    return conclude("fetching", options, figures, BARS)


if __name__ == "__main__":
    sys.exit(main())

"""`timebound bench`: load on a server, and what it made of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from timebound.cli.values import read_count, read_rates, read_span, read_time, read_whole, read_wholes
from timebound.errors import SetupError
from timebound.target import check_target

if TYPE_CHECKING:
    from timebound.lab.bench import Level, Plan, Progress
    from timebound.lab.load.client import Address
    from timebound.lab.load.discovery import Found
    from timebound.lab.load.requests import Payload, Requests

NOT_MET = 3
NO_ANSWER = 1

_EXAMPLES = """\
examples:
  timebound bench http://127.0.0.1:8000                       one client for 10 s; the body is the model's example
  timebound bench app.py --rate 50                            start the app, 50 requests/s (Poisson), stop it
  timebound bench model.onnx --clients 50 --requests 1000     closed loop: 50 at a time
  timebound bench URL --rates 20,40,80 --html report.html     a sweep, with plots
  timebound bench URL --users 100                             people who wait 2 to 5 s after each answer
  timebound bench URL --scenario contest-10x10                one of the scenarios above
  timebound bench URL --from schema                           many different bodies that fit the model's schema
  timebound bench URL --jsonl asked.jsonl --expect field:answer
  timebound bench URL --body '{"id": "{uuid}", "n": {i}}' -H 'Idempotency-Key: {uuid}'
  timebound bench URL --rate 50 --json new.json --compare old.json --require 'goodput>=0.99,p99<250ms'

exit codes: 0 done; 1 nothing was answered; 2 a mistake to mend; 3 a requirement is not met; 130 interrupted (the
results so far are printed)
"""


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    # Imported here and in `run`: other verbs start without the parts that only a bench needs.
    from timebound.lab.scenarios import SCENARIOS

    named = "\n".join(f"  {name:16} {scenario.meaning}" for name, scenario in SCENARIOS.items())
    parser = verbs.add_parser(
        "bench",
        help="put load on a server and measure what it answers in time",
        description="Put load on any HTTP model server, or on an app that is started for it, and measure what is "
        "answered in time. Latencies count from the moment a request should have been sent.",
        epilog=f"scenarios:\n{named}\n\n{_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", help="URL of a server (with a path or without), or what `timebound serve` takes")
    _add_load(parser, list(SCENARIOS))
    _add_payloads(parser)
    _add_judgement(parser)
    parser.set_defaults(run=run)


def _add_load(parser: argparse.ArgumentParser, scenarios: Sequence[str]) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--scenario", choices=scenarios, metavar="NAME", help="use one of the scenarios listed below")
    group.add_argument(
        "--rate",
        "--rates",
        type=read_rates,
        metavar="N",
        help="open loop: send so many requests per second; 20,40,80 measures one rate after the other",
    )
    group.add_argument(
        "--arrivals",
        choices=("poisson", "constant", "bursts"),
        help="how the requests of an open loop are spaced (default: poisson)",
    )
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="open loop: send at the times in this file, in seconds, one on each line",
    )
    group.add_argument(
        "--clients",
        "--concurrency",
        type=read_wholes,
        metavar="N",
        help="closed loop: so many clients, each waits for its answer; 1,10,50 measures one after the other",
    )
    group.add_argument(
        "--users", type=read_wholes, metavar="N", help="closed loop: so many users, each pauses after every answer"
    )
    group.add_argument(
        "--think",
        type=read_span,
        metavar="LOW-HIGH",
        help="shortest and longest pause of a user in seconds (default: 2-5)",
    )
    group.add_argument(
        "--duration", type=read_time, metavar="TIME", help="how long to send, at each level of load (default: 10s)"
    )
    group.add_argument(
        "--requests", type=read_whole, metavar="N", help="stop after so many requests, in place of --duration"
    )
    group.add_argument(
        "--warm-up", type=read_time, metavar="TIME", help="send for so long before measuring starts (default: 0)"
    )
    group.add_argument(
        "--timeout", type=read_time, metavar="TIME", help="give up on an answer after so long (default: 30s)"
    )
    group.add_argument(
        "--resends",
        type=read_count,
        metavar="N",
        help="how often to send a request again after a timeout or a lost connection (default: 0)",
    )
    group.add_argument(
        "--seed",
        type=read_count,
        metavar="N",
        help="start of the random numbers for arrivals and pauses; the same seed repeats a run (default: 1)",
    )
    group.add_argument(
        "--connections", type=read_whole, metavar="N", help="open at most so many connections (default: 2000)"
    )
    group.add_argument(
        "--realtime", action="store_true", help="give this client priority over other processes, where that is allowed"
    )
    group.add_argument(
        "--serve-args",
        type=shlex.split,
        default=[],
        metavar="TEXT",
        help="more flags for the server, if this command starts it",
    )


def _add_payloads(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("payloads (default: the model's own example)")
    group.add_argument(
        "--body",
        metavar="TEXT",
        help="body to send; {uuid}, {i} and {now} are replaced in each request; @FILE reads it from a file",
    )
    group.add_argument("--jsonl", type=Path, metavar="FILE", help="file with a JSON body on each line")
    group.add_argument("--folder", type=Path, metavar="DIR", help="folder of files; each is sent as it is")
    group.add_argument(
        "--from",
        dest="source",
        choices=("example", "samples", "schema"),
        help="bodies to send: the example of the model, its samples, or made up from its schema (default: example)",
    )
    group.add_argument("--model", metavar="NAME", help="name of the model to ask, if the server has several")
    group.add_argument(
        "-H",
        "--header",
        action="append",
        default=[],
        metavar="TEXT",
        help="add a header, 'Name: value'; {uuid}, {i} and {now} are replaced; may be repeated",
    )
    group.add_argument("--method", default="POST", help="HTTP method of the requests (default: POST)")
    group.add_argument("--insecure", action="store_true", help="accept any TLS certificate")


def _add_judgement(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("judgement and results")
    group.add_argument(
        "--deadline",
        type=read_time,
        metavar="TIME",
        help="an answer after so long does not count as goodput (default: the deadline of the model, else --timeout)",
    )
    group.add_argument(
        "--expect",
        metavar="FILE",
        help="right answers to compare with: a JSON or JSONL file, or field:NAME for a field in the lines of --jsonl",
    )
    group.add_argument(
        "--expect-field", metavar="NAME", help="compare only this field of the answer; a.b is a field of a field"
    )
    group.add_argument(
        "--tolerance",
        type=float,
        default=1e-6,
        metavar="X",
        help="by how much numbers in answers may differ (default: 1e-6)",
    )
    group.add_argument("--json", type=Path, metavar="FILE", help="write all results as JSON to this file")
    group.add_argument("--html", type=Path, metavar="FILE", help="write a report with plots to this file")
    group.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="show the results beside those that an earlier run wrote with --json",
    )
    group.add_argument(
        "--require",
        metavar="TEXT",
        help="requirements such as 'goodput>=0.99,p99<250ms'; exit code 3 if one is not met",
    )


def run(chosen: argparse.Namespace) -> int:
    """Measure, print, write, judge."""
    from timebound import __version__
    from timebound.lab import bench, requirements, results
    from timebound.lab.page import page

    # All that can be wrong is looked at before the load begins.
    required = requirements.read(chosen.require) if chosen.require else []
    earlier = results.read_document(chosen.compare) if chosen.compare else None
    for file in filter(None, (chosen.json, chosen.html)):
        _check_writable(file)
    plans = make_plans(chosen)
    given = _given_payloads(chosen)
    with _server(chosen) as url:
        address, path, requests, deadline_s = prepare(chosen, url, given)
        # A deadline that was asked for, or is part of the scenario, is in the plans already.
        plans = [replace(plan, deadline_s=plan.deadline_s or deadline_s or plan.timeout_s) for plan in plans]
        levels = bench.run(plans, address, requests, _line_on_terminal())
        _clear_line()
    document = results.document(chosen.target, path, levels, __version__)
    has_less = earlier is not None and not results.have_a_level_in_common(earlier, document)
    print(results.table(levels))
    if earlier is not None:
        print(f"\ncompared with {chosen.compare}:\n{results.compare(earlier, document)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(document, indent=1) + "\n")
    if chosen.html:
        chosen.html.write_text(page(document))
    verdict = _judge(levels, required)
    if has_less:
        print(
            f"timebound: {chosen.compare} has no load in common with this run, so nothing was compared", file=sys.stderr
        )
    return verdict or int(has_less)


def _judge(levels: Sequence[Level], required: Sequence[Any]) -> int:
    for level in levels:
        for warning in level.warnings:
            print(f"warning: {level.plan.title}: {warning}", file=sys.stderr)
    if levels[-1].is_interrupted:
        return 130
    failed = [(level, each) for level in levels for each in required if not each.is_met(level.figures)]
    for level, each in failed:
        found = each.found(level.figures)
        print(f"timebound: requirement not met at {level.plan.title}: {each.text}; {found}", file=sys.stderr)
    if failed:
        return NOT_MET
    return 0 if any(level.figures["requests"] > level.figures["failed"] for level in levels) else NO_ANSWER


# ---------------------------------------------------------------------- what is sent, and to whom


def make_plans(chosen: argparse.Namespace) -> list[Plan]:
    """The levels that the flags and the scenario ask for."""
    from timebound.lab.bench import Plan, sweep
    from timebound.lab.scenarios import SCENARIOS

    ways = [name for name in ("rate", "trace", "clients", "users") if getattr(chosen, name)]
    if len(ways) > 1:
        raise SetupError(f"--{ways[0]} and --{ways[1]} are two kinds of load; choose one")
    if chosen.think and not (chosen.users or chosen.clients or chosen.scenario):
        raise SetupError("--think is the pause of users; give --users too")
    settings: dict[str, Any] = dict(SCENARIOS[chosen.scenario].settings) if chosen.scenario else {}
    if chosen.requests and not chosen.duration:
        settings["seconds"] = None
    if chosen.users:
        settings["think_s"] = (2.0, 5.0)
    flags = {
        "arrivals": chosen.arrivals, "trace": chosen.trace, "think_s": chosen.think, "requests": chosen.requests,
        "seconds": chosen.duration, "warm_up_s": chosen.warm_up, "timeout_s": chosen.timeout,
        "resends": chosen.resends, "seed": chosen.seed, "connections": chosen.connections,
    }  # fmt: skip
    settings |= {name: value for name, value in flags.items() if value is not None}
    if chosen.deadline is not None:
        settings["deadline_s"] = chosen.deadline
    plan = Plan(realtime=chosen.realtime, **settings)
    return sweep(plan, chosen.rate, chosen.clients or chosen.users)


def _given_payloads(chosen: argparse.Namespace) -> list[Payload] | None:
    """The payloads that the flags name; None if there are none."""
    from timebound.lab.load import payloads

    ways = [name for name in ("body", "jsonl", "folder") if getattr(chosen, name) is not None]
    ways += ["from"] if chosen.source else []
    if len(ways) > 1:
        raise SetupError(f"--{ways[0]} and --{ways[1]} are two kinds of payload; choose one")
    field = chosen.expect.removeprefix("field:") if (chosen.expect or "").startswith("field:") else None
    if chosen.expect_field and not chosen.expect:
        raise SetupError("--expect-field says what to compare with the right answers; give them with --expect")
    if field is not None and not chosen.jsonl:
        raise SetupError("--expect field:NAME takes the answers from the lines of --jsonl; give that too")
    if chosen.body is not None:
        return payloads.from_text(chosen.body)
    if chosen.jsonl:
        return payloads.from_lines(chosen.jsonl, field, chosen.expect_field, chosen.tolerance)
    if chosen.folder:
        if not chosen.folder.is_dir():
            raise SetupError(f"{chosen.folder} is no folder; --folder wants one with a file per payload")
        return payloads.from_folder(chosen.folder)
    return None


def prepare(
    chosen: argparse.Namespace, url: str, given: list[Payload] | None
) -> tuple[Address, str, Requests, float | None]:
    """Where to send what, and the model's own deadline if it has one."""
    from timebound.lab.load.client import resolve
    from timebound.lab.load.discovery import discover
    from timebound.lab.load.payloads import expecting
    from timebound.lab.load.requests import FRESH_KEY, Form, Payload, Requests, read_header

    address = resolve(url, verify=not chosen.insecure)
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    source = (chosen.source or "example") if given is None and chosen.method != "GET" else None
    headers = [read_header(text) for text in chosen.header]
    found = asyncio.run(discover(address, parts.path or "/", chosen.model, source, headers))
    sent = given or (found.payloads if found else None) or None
    if sent is None and chosen.method == "GET":
        sent = [Payload(b"")]
    if sent is None:
        raise SetupError(_nothing_to_send(url, found))
    if found and path == "/":
        path = found.path
    if chosen.expect and not chosen.expect.startswith("field:"):
        sent = expecting(sent, Path(chosen.expect), chosen.expect_field, chosen.tolerance)
    if given is None and found and found.knows_by_content and FRESH_KEY[0] not in dict(headers):
        headers.append(FRESH_KEY)
    form = Form(address.host_header, path, chosen.method, headers)
    return address, path, Requests(form, sent), found.deadline_s if found else None


def _nothing_to_send(url: str, found: Found | None) -> str:
    if found is not None:
        return f"the model at {found.path} takes raw bytes and shows none; give some with --folder or --body @FILE"
    return f"{url} does not say what it can be asked; give --body, --jsonl or --folder, or --method GET"


@contextmanager
def _server(chosen: argparse.Namespace) -> Iterator[str]:
    """The URL to measure; a file or folder is served for as long as that takes."""
    if "://" in chosen.target:
        yield chosen.target
        return
    target = Path(chosen.target)
    if not target.exists() and ":" in chosen.target:
        raise SetupError(f"{chosen.target} is neither a file nor a URL; write http://{chosen.target} for a server")
    check_target(target)
    from timebound.lab.load.launch import serving

    print(f"starting {target}", file=sys.stderr)
    with serving(target, chosen.serve_args) as server:
        yield server.url


def _check_writable(file: Path) -> None:
    if not file.parent.is_dir():
        raise SetupError(f"cannot write {file}: there is no folder {file.parent}")


# ---------------------------------------------------------------------- progress


def _line_on_terminal() -> Callable[[Progress], None] | None:
    """Shows how a level stands, on one line; None if nobody watches."""
    if not sys.stderr.isatty():
        return None

    def tell(progress: Progress) -> None:
        tally = progress.tally
        share = tally.good / tally.requests if tally.requests else 0.0
        p50, p99 = (value * 1000 for value in tally.answers.quantiles([0.5, 0.99]))
        line = (
            f"{progress.plan.title}: {progress.seconds:5.1f} s  {tally.requests:,} done, "
            f"{progress.under_way} under way  goodput {share:.3f}  p50 {p50:.1f} ms  p99 {p99:.1f} ms"
        )
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    return tell


def _clear_line() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)

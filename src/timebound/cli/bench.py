"""`timebound bench`: load on a server, and what it made of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from timebound.cli.verb import check_writable, declare, read_count, read_time, read_whole
from timebound.errors import SetupError
from timebound.target import check_target

if TYPE_CHECKING:
    from timebound.lab.bench import Level, Plan, Progress
    from timebound.lab.load.client import Address
    from timebound.lab.load.discovery import Found
    from timebound.lab.load.requests import Payload, Requests

NOT_MET = 3
NO_ANSWER = 1


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(
        verbs,
        "bench",
        "put load on a server and measure what it answers in time",
        "Put load on any HTTP model server, or on an app that is started for it, and measure what is "
        "answered in time. Latencies count from the moment a request should have been sent.",
    )
    scenarios = _scenarios()
    named = "\n".join(f"  {name:16} {scenario['meaning']}" for name, scenario in scenarios.items())
    parser.epilog = f"scenarios:\n{named}\n\n{parser.epilog}"
    parser.add_argument("target", help="URL of a server (with a path or without), or what `timebound serve` takes")
    _add_load(parser.add_argument_group("load").add_argument, list(scenarios))
    _add_payloads(parser.add_argument_group("payloads (default: the model's own example)").add_argument)
    _add_judgement(parser.add_argument_group("judgement and results").add_argument)
    parser.set_defaults(run=run)


def _scenarios() -> dict[str, dict[str, Any]]:
    """Loads by name: a meaning for people, and what each sets of a plan."""
    return tomllib.loads(Path(__file__).with_name("scenarios.toml").read_text())


def _add_load(add: Callable[..., Any], scenarios: Sequence[str]) -> None:
    add("--scenario", choices=scenarios, metavar="NAME", help="a load of the list below")
    add("--rate", "--rates", type=_floats, metavar="N", help="open loop: requests/s; 20,40,80 is a sweep")
    add("--arrivals", choices=("poisson", "constant", "bursts"), help="how they come (default: poisson)")
    add("--trace", type=Path, metavar="FILE", help="open loop: arrival times in seconds, one a line")
    closed = "closed loop: so many at a time; 1,10,50 is a sweep"
    add("--clients", "--concurrency", type=_wholes, metavar="N", help=closed)
    add("--users", type=_wholes, metavar="N", help="closed loop with a pause after each answer")
    add("--think", dest="think_s", type=_span, metavar="LOW-HIGH", help="that pause in seconds (default: 2-5)")
    add(
        "--duration", dest="seconds", type=read_time, metavar="TIME", help="how long to send, each level (default: 10s)"
    )
    add("--requests", type=read_whole, metavar="N", help="stop after so many requests")
    before = "send for so long before it counts (default: 0)"
    add("--warm-up", dest="warm_up_s", type=read_time, metavar="TIME", help=before)
    after = "give an attempt up after so long (default: 30s)"
    add("--timeout", dest="timeout_s", type=read_time, metavar="TIME", help=after)
    add("--resends", type=read_count, metavar="N", help="send again after a timeout or a lost connection")
    add("--seed", type=read_count, metavar="N", help="of random arrivals and pauses (default: 1)")
    add("--connections", type=read_whole, metavar="N", help="open at the most (default: 2000)")
    add("--realtime", action="store_true", help="run ahead of other processes, where that is allowed")
    more = "more flags for the server that is started"
    add("--serve-args", type=shlex.split, default=[], metavar="TEXT", help=more)


def _add_payloads(add: Callable[..., Any]) -> None:
    add("--body", metavar="TEXT", help="{uuid}, {i}, {now} are filled in; @FILE reads it from a file")
    add("--jsonl", type=Path, metavar="FILE", help="a JSON body on each line")
    add("--folder", type=Path, metavar="DIR", help="a raw body in each file")
    sources = ("example", "samples", "schema")
    add("--from", dest="source", choices=sources, help="what the server says it can be asked (default: example)")
    add("--model", metavar="NAME", help="which model, if the server has several")
    add("-H", "--header", action="append", default=[], metavar="TEXT", help="'Name: value', with places")
    add("--method", default="POST", help="(default: POST)")
    add("--insecure", action="store_true", help="take any TLS certificate")


def _add_judgement(add: Callable[..., Any]) -> None:
    deadline = "of goodput (default: the model's, else --timeout)"
    add("--deadline", dest="deadline_s", type=read_time, metavar="TIME", help=deadline)
    right = "the right answers: JSON or JSONL, or field:NAME for a field of --jsonl's lines"
    add("--expect", metavar="FILE", help=right)
    add("--expect-field", metavar="NAME", help="compare this field of the answer only (dotted)")
    add("--tolerance", type=float, default=1e-6, metavar="X", help="of numbers in answers (default: 1e-6)")
    add("--json", type=Path, metavar="FILE", help="write all results")
    add("--html", type=Path, metavar="FILE", help="write a report with plots, in one file")
    add("--compare", type=Path, metavar="FILE", help="show the results beside those of an earlier --json")
    add("--require", metavar="TEXT", help="such as 'goodput>=0.99,p99<250ms'; exit code 3 if not met")


def run(chosen: argparse.Namespace) -> int:
    """Measure, print, write, judge."""
    # Imported here and below: other verbs start without the parts that only a bench needs.
    from timebound import __version__
    from timebound.lab import bench, requirements, results
    from timebound.lab.page import page

    # All that can be wrong is looked at before the load begins.
    required = requirements.read(chosen.require) if chosen.require else []
    earlier = results.read_document(chosen.compare) if chosen.compare else None
    for file in filter(None, (chosen.json, chosen.html)):
        check_writable(file)
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

    ways = [name for name in ("rate", "trace", "clients", "users") if getattr(chosen, name)]
    if len(ways) > 1:
        raise SetupError(f"--{ways[0]} and --{ways[1]} are two kinds of load; choose one")
    if chosen.think_s and not (chosen.users or chosen.clients or chosen.scenario):
        raise SetupError("--think is the pause of users; give --users too")
    settings: dict[str, Any] = _scenarios()[chosen.scenario] if chosen.scenario else {}
    settings.pop("meaning", None)
    if users := settings.pop("users", None):
        settings["clients"] = users
    if chosen.users or users:
        settings["think_s"] = (2.0, 5.0)
    if (chosen.requests or "requests" in settings) and not chosen.seconds:
        settings["seconds"] = None
    # Flags go by the names of a plan's fields; those that a sweep varies are lists.
    given = {field.name: getattr(chosen, field.name, None) for field in fields(Plan)}
    given = {name: value for name, value in given.items() if value is not None and name not in ("rate", "clients")}
    return sweep(Plan(**settings | given), chosen.rate, chosen.clients or chosen.users)


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


# ---------------------------------------------------------------------- how flags are read


def _wholes(text: str) -> list[int]:
    return [read_whole(part) for part in text.split(",")]


def _floats(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r} must be requests/s above zero, such as 50 or 20,40,80")
    return rates


def _span(text: str) -> tuple[float, float]:
    low, _, high = text.partition("-")
    span = (read_time(low), read_time(high or low))
    if span[0] > span[1]:
        raise argparse.ArgumentTypeError(f"{text!r} must be the shortest and the longest pause, such as 2-5")
    return span


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

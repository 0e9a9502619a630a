"""`timebound bench`: load on a server, and what it made of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from timebound import __version__
from timebound.cli.values import read_count, read_rates, read_span, read_time, read_whole, read_wholes
from timebound.cli.verb import check_writable, declare
from timebound.errors import SetupError
from timebound.lab import bench, export, requirements, results
from timebound.lab.bench import Level, Plan, Tell
from timebound.lab.load import payloads
from timebound.lab.load.client import Address, resolve
from timebound.lab.load.discovery import SOURCES, discover
from timebound.lab.load.launch import serving
from timebound.lab.load.requests import FRESH_KEY, Form, Payload, Requests, read_header
from timebound.lab.load.tally import Tally
from timebound.lab.page import page
from timebound.target import check_target

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
    add("--scenario", choices=scenarios, metavar="NAME", help="use one of the scenarios listed below")
    rates = "open loop: send so many requests per second; 20,40,80 measures one rate after the other"
    add("--rate", "--rates", type=read_rates, metavar="N", help=rates)
    spaced = "how the requests of an open loop are spaced (default: poisson)"
    add("--arrivals", choices=("poisson", "constant", "bursts"), help=spaced)
    trace = "open loop: send at the times in this file, in seconds, one on each line"
    add("--trace", type=Path, metavar="FILE", help=trace)
    clients = "closed loop: so many clients, each waits for its answer; 1,10,50 measures one after the other"
    add("--clients", "--concurrency", type=read_wholes, metavar="N", help=clients)
    add("--users", type=read_wholes, metavar="N", help="closed loop: so many users, each pauses after every answer")
    pause = "shortest and longest pause of a user in seconds (default: 2-5)"
    add("--think", dest="think_s", type=read_span, metavar="LOW-HIGH", help=pause)
    duration = "how long to send, at each level of load (default: 10s)"
    add("--duration", dest="seconds", type=read_time, metavar="TIME", help=duration)
    add("--requests", type=read_whole, metavar="N", help="stop after so many requests, in place of --duration")
    before = "send for so long before measuring starts (default: 0)"
    add("--warm-up", dest="warm_up_s", type=read_time, metavar="TIME", help=before)
    after = "give up on an answer after so long (default: 30s)"
    add("--timeout", dest="timeout_s", type=read_time, metavar="TIME", help=after)
    again = "how often to send a request again after a timeout or a lost connection (default: 0)"
    add("--resends", type=read_count, metavar="N", help=again)
    seed = "start of the random numbers for arrivals and pauses; the same seed repeats a run (default: 1)"
    add("--seed", type=read_count, metavar="N", help=seed)
    add("--connections", type=read_whole, metavar="N", help="open at most so many connections (default: 2000)")
    first = "give this client priority over other processes, where that is allowed"
    add("--realtime", action="store_true", help=first)
    more = "more flags for the server, if this command starts it"
    add("--serve-args", type=shlex.split, default=[], metavar="TEXT", help=more)


def _add_payloads(add: Callable[..., Any]) -> None:
    body = "body to send; {uuid}, {i} and {now} are replaced in each request; @FILE reads it from a file"
    add("--body", metavar="TEXT", help=body)
    add("--jsonl", type=Path, metavar="FILE", help="file with a JSON body on each line")
    add("--folder", type=Path, metavar="DIR", help="folder of files; each is sent as it is")
    bodies = "bodies to send: the example of the model, its samples, or made up from its schema (default: example)"
    add("--from", dest="source", choices=SOURCES, help=bodies)
    add("--model", metavar="NAME", help="name of the model to ask, if the server has several")
    header = "add a header, 'Name: value'; {uuid}, {i} and {now} are replaced; may be repeated"
    add("-H", "--header", action="append", default=[], metavar="TEXT", help=header)
    add("--method", default="POST", help="HTTP method of the requests (default: POST)")
    add("--insecure", action="store_true", help="accept any TLS certificate")


def _add_judgement(add: Callable[..., Any]) -> None:
    late = "an answer after so long does not count as goodput (default: the deadline of the model, else --timeout)"
    add("--deadline", dest="deadline_s", type=read_time, metavar="TIME", help=late)
    right = "right answers to compare with: a JSON or JSONL file, or field:NAME for a field in the lines of --jsonl"
    add("--expect", metavar="FILE", help=right)
    add("--expect-field", metavar="NAME", help="compare only this field of the answer; a.b is a field of a field")
    within = "by how much numbers in answers may differ (default: 1e-6)"
    add("--tolerance", type=float, default=1e-6, metavar="X", help=within)
    add("--json", type=Path, metavar="FILE", help="write all results as JSON to this file")
    add("--html", type=Path, metavar="FILE", help="write a report with plots to this file")
    tools = "write the requests to this file for JMeter (.jmx) or Postman (.json), and send no load; may be repeated"
    add("--export", type=Path, action="append", metavar="FILE", help=tools)
    beside = "show the results beside those that an earlier run wrote with --json"
    add("--compare", type=Path, metavar="FILE", help=beside)
    required = "requirements such as 'goodput>=0.99,p99<250ms'; exit code 3 if one is not met"
    add("--require", metavar="TEXT", help=required)


def run(chosen: argparse.Namespace) -> int:
    """Measure, print, write, judge; or write the requests for other tools."""
    # All that can be wrong is looked at before the load begins.
    required = requirements.read(chosen.require) if chosen.require else []
    earlier = results.read_document(chosen.compare) if chosen.compare else None
    for file in filter(None, (chosen.json, chosen.html)):
        check_writable(file)
    plans = make_plans(chosen)
    given = _given_payloads(chosen)
    if chosen.export:
        return _export(chosen, plans[0], given)
    with _server(chosen) as url:
        address, form, sent, deadline_s = prepare(chosen, url, given)
        path, requests = form.path, Requests(form, sent)
        # A deadline that was asked for, or is part of the scenario, is in the plans already.
        plans = [replace(plan, deadline_s=plan.deadline_s or deadline_s or plan.timeout_s) for plan in plans]
        levels = bench.run(plans, address, requests, _line_on_terminal())
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)  # what told of progress
    document = results.document(chosen.target, path, levels, __version__)
    has_less = earlier is not None and not results.have_a_level_in_common(earlier, document)
    print(results.table(document))
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


def _export(chosen: argparse.Namespace, plan: Plan, given: list[Payload] | None) -> int:
    """Write what would be sent, for another tool to send."""
    for file in chosen.export:
        export.check_ending(file)
        check_writable(file)
    with _server(chosen) as url:
        address, form, sent, _ = prepare(chosen, url, given)
        asked = export.Asked(address, form, sent[0])
        routes = asyncio.run(export.routes(asked))
    for file in chosen.export:
        file.write_text(export.write(file, asked, routes, plan))
        print(f"wrote {file}; nothing was measured")
    return 0


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
    plan, clients = Plan(**settings | given), chosen.clients or chosen.users
    if chosen.rate:
        return [replace(plan, rate=rate) for rate in chosen.rate]
    return [replace(plan, clients=count) for count in clients] if clients else [plan]


def _given_payloads(chosen: argparse.Namespace) -> list[Payload] | None:
    """The payloads that the flags name; None if there are none."""
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
) -> tuple[Address, Form, list[Payload], float | None]:
    """Where to send what, and the model's own deadline if it has one."""
    address = resolve(url, verify=not chosen.insecure)
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    source = (chosen.source or "example") if given is None and chosen.method != "GET" else None
    headers = [read_header(text) for text in chosen.header]
    found = asyncio.run(discover(address, parts.path or "/", chosen.model, source, headers))
    sent = given or (found.payloads if found else None) or None
    if sent is None and chosen.method == "GET":
        sent = [Payload(b"")]
    if sent is None and found is not None:
        raise SetupError(
            f"the model at {found.path} takes raw bytes and shows none; give some with --folder or --body @FILE"
        )
    if sent is None:
        raise SetupError(f"{url} does not say what it can be asked; give --body, --jsonl or --folder, or --method GET")
    if found and path == "/":
        path = found.path
    if chosen.expect and not chosen.expect.startswith("field:"):
        sent = payloads.expecting(sent, Path(chosen.expect), chosen.expect_field, chosen.tolerance)
    if given is None and found and found.knows_by_content and FRESH_KEY[0] not in dict(headers):
        headers.append(FRESH_KEY)
    form = Form(address.host_header, path, chosen.method, headers)
    return address, form, sent, found.deadline_s if found else None


@contextmanager
def _server(chosen: argparse.Namespace) -> Iterator[str]:
    """The URL to measure; a file or folder is served for as long as that takes."""
    if "://" in chosen.target:
        yield chosen.target
        return
    target = Path(chosen.target)
    if not target.exists() and re.search(r":\d+(/|$)", chosen.target):  # a host and its port
        raise SetupError(f"{chosen.target} is neither a file nor a URL; write http://{chosen.target} for a server")
    check_target(target)
    print(f"starting {target}", file=sys.stderr)
    with serving(target, chosen.serve_args) as server:
        yield server.url


# ---------------------------------------------------------------------- progress


def _line_on_terminal() -> Tell | None:
    """Shows how a level stands, on one line; None if nobody watches."""
    if not sys.stderr.isatty():
        return None

    def tell(plan: Plan, seconds: float, under_way: int, tally: Tally) -> None:
        share = tally.good / tally.requests if tally.requests else 0.0
        p50, p99 = (value * 1000 for value in tally.answers.quantiles([0.5, 0.99]))
        line = (
            f"{plan.title}: {seconds:5.1f} s  {tally.requests:,} done, {under_way} under way "
            f" goodput {share:.3f}  p50 {p50:.1f} ms  p99 {p99:.1f} ms"
        )
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    return tell

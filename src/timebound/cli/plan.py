"""`timebound plan`: how many machines a load needs, and what they cost, from a measured profile."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from timebound.cli.values import read_count, read_number, read_part, read_time, read_whole
from timebound.cli.verb import declare, profiles_of
from timebound.clock import wall
from timebound.errors import SetupError
from timebound.lab import plan, planned
from timebound.lab.fleet import EXAMPLES, MachineType, read_machines, read_price
from timebound.lab.measured import choose
from timebound.profile import ProfileFile, read_saved, this_machine
from timebound.target import resolved


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(
        verbs,
        "plan",
        "how many machines a load needs, and what they cost",
        "Simulate a measured model under a load, and count the machines that it needs and their price.",
    )
    add = parser.add_argument
    target = "what was tuned or served on this machine before: a Python file, a model file or a folder"
    add("target", type=Path, nargs="?", help=target)
    add("--profile", type=Path, metavar="FILE", help="file of a saved profile, in place of a target")
    add("--model", default="", metavar="NAME", help="name of the model, if there are several")
    add("--rate", type=read_number, metavar="N", help="requests per second at the peak")
    average = "requests per second on average over the month, for the price (default: as --rate)"
    add("--average", type=read_number, metavar="N", help=average)
    add("--deadline", type=read_time, metavar="TIME", help="deadline of the requests, such as 250ms")
    goodput = "share of the requests that the model must answer in time (default: 99%%)"
    add("--goodput", type=read_part, default=0.99, metavar="SHARE", help=goodput)
    add("--full", action="store_true", help="count only answers by all members of an ensemble")
    headroom = "room to keep free above the peak (default: 20%%)"
    add("--headroom", type=read_part, default=0.2, metavar="SHARE", help=headroom)
    spare = "number of machines that may be down at the peak (default: 1)"
    add("--spare", type=read_count, default=1, metavar="N", help=spare)
    add("--machines", type=Path, metavar="FILE", help="TOML file of machine types and their prices")
    add("--print-machines", action="store_true", help="print an example of that file, and do nothing else")
    price = "price of one machine, such as 5/month or 0.01/hour, in place of --machines"
    add("--price", metavar="PRICE", help=price)
    add("--cores", type=read_whole, metavar="N", help="number of cores of the machine that --price is for")
    speed = "speed of its cores, where 1 is as fast as the machine of the profile (default: 1)"
    gpus = "number of GPUs of that machine, if the profile was measured on one"
    add("--gpus", type=read_whole, default=0, metavar="N", help=gpus)
    add("--speed", type=read_number, default=1.0, metavar="X", help=speed)
    add("--json", type=Path, metavar="FILE", help="write everything as JSON")
    add("--html", type=Path, metavar="FILE", help="write a page with plots")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Find the profile, simulate, show."""
    if chosen.print_machines:
        print(EXAMPLES.read_text(), end="")
        return 0
    demand, kinds, file = _demand(chosen), _kinds(chosen), _profile(chosen)
    saved = read_saved(file)
    name, profile = choose(saved, chosen.model)
    offers = []
    for kind in kinds:
        print(f"simulating {kind.name}", file=sys.stderr, flush=True)
        offers.append(plan.offer(profile, kind, demand))
    age_days = (wall() - file.stat().st_mtime) / 86_400
    sentences = planned.advice(demand, offers, profile.members)
    if chosen.machines is None and chosen.price is None:
        sentences.append("these machine types and prices are examples; --print-machines shows how to give yours")
    doubts = plan.doubts(profile, offers, age_days, this_machine(saved.machine.slots))
    sentences += planned.sureness(demand, offers, doubts)
    print(f"{name}: {planned.asked(demand)}\n\n{planned.table(offers)}\n\n" + "\n".join(sentences))
    if chosen.json:
        found = {"model": name, "demand": demand, "profile_age_days": age_days, "offers": offers, "doubts": doubts}
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    if chosen.html:
        most = max(each.most_rps for each in offers)
        rates = [most * share for share in _SHARES]
        curves = {kind.name: plan.goodput_curve(profile, kind, demand, rates) for kind in kinds} if most else {}
        chosen.html.write_text(planned.page(f"timebound plan {name}", demand, offers, sentences, curves))
    return 0 if plan.cheapest(offers) else 1


# Of the largest rate of the fastest type; where the others end is seen too.
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15)


def _demand(chosen: argparse.Namespace) -> plan.Demand:
    for flag in ("rate", "deadline"):
        if not getattr(chosen, flag):
            raise SetupError(f"give --{flag}: for example timebound plan app.py --rate 500 --deadline 1s")
    average = chosen.average or chosen.rate
    if average > chosen.rate:
        raise SetupError(f"--average {average:g} is above the peak, --rate {chosen.rate:g}; raise that")
    return plan.Demand(
        rate=chosen.rate,
        average=average,
        deadline_s=chosen.deadline,
        goodput=chosen.goodput,
        is_full=chosen.full,
        headroom=chosen.headroom,
        spare=chosen.spare,
    )


def _kinds(chosen: argparse.Namespace) -> list[MachineType]:
    if (chosen.price is None) != (chosen.cores is None):
        raise SetupError("--price and --cores belong together: --price 5/month --cores 1")
    if chosen.price is not None:
        return [MachineType("given", chosen.cores, read_price(chosen.price), chosen.speed, chosen.gpus)]
    return read_machines(chosen.machines or EXAMPLES)


def _profile(chosen: argparse.Namespace) -> Path:
    """The file with the profile; raises `SetupError` saying how to get one."""
    if chosen.profile is not None:
        return Path(chosen.profile)
    if chosen.target is None:
        raise SetupError("give what was tuned, or --profile FILE: for example timebound plan app.py --rate 500 ...")
    folder = profiles_of(chosen.target)
    cure = f"`timebound tune {chosen.target}` measures one, and so does a server under load when it is stopped"
    if folder is None:
        raise SetupError(f"profiles are not kept here (profiles = none); give --profile FILE, or keep them: {cure}")
    file = ProfileFile(folder, resolved(chosen.target)).path
    if not file.is_file():
        raise SetupError(f"there is no profile of {chosen.target} in {folder}; {cure}")
    return file

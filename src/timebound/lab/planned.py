"""A plan for people: a table of machine types, sentences, and a page with plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from timebound.lab.chart import SHARES, Line, chart, limit, linear, whole_page
from timebound.lab.chart import table as html_table
from timebound.lab.plan import ERROR, FAST_RPS, Demand, Offer, Outlook, cheapest, machines_for
from timebound.lab.results import in_columns

Curves = Mapping[str, Sequence[Outlook]]
"""By machine type: one machine against the load."""

_HEAD = ("machine type", "cores", "price", "rate/machine", "machines", "per month", "per million", "in time",
         "members", "p50 ms", "p99 ms", "p99 ms, one down")  # fmt: skip


def rows(offers: Sequence[Offer]) -> list[list[str]]:
    """The table: a head, then one row for each machine type."""
    return [list(_HEAD), *(_row(each) for each in offers)]


def _row(each: Offer) -> list[str]:
    kind = each.kind
    begin = [kind.name, str(kind.cores), f"{kind.price:,.2f}"]
    if each.peak is None:
        return [*begin, "0", *["-"] * (len(_HEAD) - 4)]
    peak, down = each.peak, each.one_down
    return [
        *begin,
        f"{each.most_rps:,.1f}",
        str(each.machines),
        f"{each.per_month:,.2f}",
        f"{each.per_million:,.3f}",
        f"{peak.in_time:.2%}",
        f"{peak.members:.2f}",
        f"{peak.p50_ms:.1f}",
        f"{peak.p99_ms:.1f}",
        f"{down.p99_ms:.1f}" if down is not None else "-",
    ]


def table(offers: Sequence[Offer]) -> str:
    """The table as text."""
    return "\n".join(in_columns(rows(offers)))


def asked(demand: Demand) -> str:
    """The demand in a sentence."""
    what = "in full" if demand.is_full else "by the model"
    return (
        f"{demand.rate:g} requests/s at the peak, each within {demand.deadline_s * 1000:g} ms, {demand.goodput:.4g} of "
        f"them answered {what} in time; {demand.headroom:.0%} headroom with {demand.spare} "
        f"machine{'s' if demand.spare != 1 else ''} down"
    )


def advice(demand: Demand, offers: Sequence[Offer], members: int) -> list[str]:
    """What to take, and what clients will see, in sentences."""
    best = cheapest(offers)
    if best is None or best.peak is None:
        return [
            "none of these machine types answers enough in time, at any rate: give a longer deadline, a faster machine "
            "type or a smaller network"
        ]
    count = f"{best.machines} x {best.kind.name}"
    said = [f"cheapest: {count}, {best.per_month:,.2f} a month, {best.per_million:,.3f} per million requests"]
    if demand.average == demand.rate:
        said[0] += " if the peak lasts all month; --average gives the price at your average rate"
    said.append(f"at the peak {best.peak.in_time:.2%} in time, half of them within {best.peak.p50_ms:.1f} ms and 99 % "
                f"within {best.peak.p99_ms:.1f} ms")  # fmt: skip
    if members > 1:
        said.append(f"{best.peak.members:.2f} of {members} members in an answer, {best.peak.full:.1%} have all")
    if best.one_down is not None:
        said.append(f"with {demand.spare} down {best.one_down.in_time:.2%} in time, 99 % within "
                    f"{best.one_down.p99_ms:.1f} ms")  # fmt: skip
    spread = (best.most_high - best.most_low) / best.most_rps
    end = "or more" if best.most_rps >= FAST_RPS else "at most"  # beyond that little is tried
    said.append(f"one {best.kind.name} takes {best.most_rps:,.1f}/s {end}; seeds differ by {spread:.1%}")
    return said


def sureness(demand: Demand, offers: Sequence[Offer], doubts: Sequence[str]) -> list[str]:
    """How far the cheapest plan may be off, and why it may be off further."""
    best = cheapest(offers)
    if best is None:
        return [f"doubt: {text}" for text in doubts]
    few, many = (machines_for(demand, best.most_rps * factor) for factor in (1 + ERROR, 1 - ERROR))
    price = best.kind.price
    counts = f"{few} to {many} machines, {few * price:,.2f} to {many * price:,.2f} a month"
    off = f"{ERROR:.0%} off would be {counts if few < many else 'the same number of machines'}"
    if not doubts:
        return [f"how sure: on the machine that was measured such predictions are right to {ERROR:.0%}; {off}"]
    count = f"{len(doubts)} doubt{'s' if len(doubts) > 1 else ''}"
    return [f"how sure: less than it could be, for {count}; {off}", *(f"doubt: {text}" for text in doubts)]


def page(title: str, demand: Demand, offers: Sequence[Offer], sentences: Sequence[str], curves: Curves) -> str:
    """One HTML file that needs nothing from elsewhere."""
    parts = [
        f"<p>{escape(asked(demand))}. Simulated from a measured profile; prices as given.</p>",
        html_table(rows(offers)),
        *(f"<p>{escape(sentence)}</p>" for sentence in sentences),
        *_plots(demand, offers, curves),
    ]
    return whole_page(title, parts)


def _plots(demand: Demand, offers: Sequence[Offer], curves: Curves) -> list[str]:
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return []
    x = linear("requests/s on one machine", [point.rate for point in points])
    goodput = [Line(name, [(point.rate, point.in_time) for point in curve]) for name, curve in curves.items()]
    tails = [Line(name, [(point.rate, point.p99_ms) for point in curve]) for name, curve in curves.items()]
    deadline = demand.deadline_s * 1000
    tails.append(limit("deadline", deadline, x))
    y = linear("ms", [deadline, *(point.p99_ms for point in points)])
    return [
        chart("Answered in time by one machine", x, SHARES, goodput),
        chart("p99 of answers of one machine", x, y, tails),
        _price_plot(demand, offers),
    ]


def _price_plot(demand: Demand, offers: Sequence[Offer]) -> str:
    """The monthly price up to twice the peak: a step for each machine more."""
    able = [each for each in offers if each.machines]
    rates = [demand.rate * 2 * n / 200 for n in range(1, 201)]
    lines = []
    for each in able:
        carried = each.most_rps / (1 + demand.headroom)
        steps = [(rate, (-(-rate // carried) + demand.spare) * each.kind.price) for rate in rates]
        lines.append(Line(each.kind.name, steps))
    x = linear("requests/s at the peak", rates)
    return chart("Price per month", x, linear("per month", [cost for line in lines for _, cost in line.points]), lines)

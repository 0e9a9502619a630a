"""The tables of docs/comparison.md that a run of benchmarks/serving/comparison.py writes, between two marks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.tools.compared import COMPARED, Compared

BEGIN = "<!-- from here to the next mark: written by benchmarks/serving/comparison.py -->"
END = "<!-- end of what it writes -->"
APPS = {"hello": "hello", "network": "torch model"}


@dataclass
class Findings:
    """What a run has found out, by contestant."""

    versions: dict[str, str] = field(default_factory=dict)
    # By (contestant, app).
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    # Why somebody has no figures.
    absent: dict[str, str] = field(default_factory=dict)


def commands() -> str:
    """What a user types for hello, of each contestant."""
    rows = [
        f"| {each.title} | " + "<br>".join(f"`{command}`" for command in each.typed("hello")) + " |"
        for each in COMPARED.values()
    ]
    return "\n".join(["| | from an empty environment to the first answer of hello |", "|---|---|", *rows])


def counts() -> str:
    """Commands and lines of code."""
    return "\n".join(
        [
            _row("commands, hello", lambda each: str(len(each.typed("hello")))),
            _row("lines of code, hello", lambda each: _linked(each, "hello")),
            _row("lines of code, torch model", lambda each: _linked(each, "network")),
        ]
    )


def _linked(each: Compared, app: str) -> str:
    return f"[{each.lines(app)}](../benchmarks/serving/apps/compared/{each.name}/{app}.py)"


def _row(title: str, cell: Callable[[Compared], str]) -> str:
    return f"| {title} | " + " | ".join(cell(each) for each in COMPARED.values()) + " |"


def render(findings: Findings, figures: Mapping[str, float], how: str) -> str:
    """Both tables; `how` says on what and when it was measured."""

    def seconds(app: str) -> Callable[[Compared], str]:
        return lambda each: f"{figures[key]:.1f}" if (key := f"{app}_s_{each.name}") in figures else "not measured"

    table = [
        "| | " + " | ".join(each.title for each in COMPARED.values()) + " |",
        "|---|" + "---|" * len(COMPARED),
        _row("version", lambda each: findings.versions.get(each.name, "not measured")),
        counts(),
        *(_row(f"seconds to the first answer, {title}", seconds(app)) for app, title in APPS.items()),
    ]
    whys = [f"- {COMPARED[name].title}: {' '.join(why.split())}" for name, why in findings.absent.items()]
    missing = ["", "Not measured:", "", *whys] if whys else []
    return "\n".join([*table, "", how, *missing, "", commands()])


def written(page: str, tables: str) -> str:
    """The page with these tables between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no marks: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"

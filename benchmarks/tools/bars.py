"""Bars: the limits that a benchmark's figures must keep, told one by one, and the exit code they give."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

Figures = Mapping[str, float | str]


@dataclass(frozen=True)
class Bar:
    """A figure by its name, and what it must reach or may reach; a figure on its limit holds."""

    name: str
    at_least: float = -inf
    at_most: float = inf
    noise: float = 0.0
    """How far a good figure may be beyond the limit by chance; what it comes from stands beside the bar."""
    is_quick: bool = True
    """Whether a run with --quick is long enough to judge it."""

    def holds(self, figure: float) -> bool:
        """Whether this figure is within the limits; one that is not a number is not."""
        return self.at_least - self.noise <= figure <= self.at_most + self.noise

    @property
    def limits(self) -> str:
        """In words."""
        told = [f"at least {_plain(self.at_least)}"] if self.at_least > -inf else []
        told += [f"at most {_plain(self.at_most)}"] if self.at_most < inf else []
        return " and ".join(told) + (f", give or take {_plain(self.noise)}" if self.noise else "")


def zero(*names: str) -> tuple[Bar, ...]:
    """Bars of counts that must all be 0, in the shortest run too."""
    return tuple(Bar(name, at_most=0) for name in names)


def judge(program: str, figures: Figures, bars: Sequence[Bar], is_quick: bool, *, is_partial: bool = False) -> int:
    """Print one line for each bar, name those that cannot be judged, and give the exit code.

    A bar without a figure fails, unless the run was to be short or `is_partial`: parts were left out on purpose.
    """
    measured = {name: float(figure) for name, figure in figures.items() if not isinstance(figure, str)}
    judged = [bar for bar in bars if bar.name in measured and (bar.is_quick or not is_quick)]
    width = max((len(bar.name) for bar in judged), default=0)
    for bar in judged:
        verdict = "holds" if bar.holds(measured[bar.name]) else "FAILS"
        print(f"{verdict}  {bar.name:{width}} {_plain(measured[bar.name]):>10}  {bar.limits}")
    short = [bar for bar in bars if is_quick and not bar.is_quick]
    _tell("too short a run to judge", [bar.name for bar in short])
    absent = [bar.name for bar in bars if bar.name not in measured and bar not in short]
    _tell("not measured", absent)
    failed = [bar for bar in judged if not bar.holds(measured[bar.name])]
    for bar in failed:
        print(f"{program}: {bar.name} is {_plain(measured[bar.name])}, not {bar.limits}", file=sys.stderr)
    if is_quick or is_partial:
        absent = []
    for name in absent:
        print(f"{program}: {name} was not measured; if that is meant, leave its part out", file=sys.stderr)
    return 1 if failed or absent else 0


def conclude(program: str, options: argparse.Namespace, figures: Figures, bars: Sequence[Bar]) -> int:
    """Write the figures where --json asks for them and hold them to the bars; the exit code."""
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    is_partial = getattr(options, "is_partial", False)  # set by `add_choice`
    return judge(program, figures, bars, options.quick, is_partial=is_partial)


def _tell(why: str, names: Sequence[str]) -> None:
    if names:
        print(f"{why}: {', '.join(names)}")


def _plain(figure: float) -> str:
    text = f"{figure:,.4f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

"""Pages of tables and line charts: plain HTML and inline SVG in one file, nothing to load and nothing that runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

WIDTH, HEIGHT = 720, 300
_LEFT, _RIGHTMOST, _TOP, _LOWEST = 62, WIDTH - 16, 30, HEIGHT - 42
# Readable on white and on black, and for most who see colours differently.
COLOURS = ("#2b7bba", "#e07b00", "#c0392b", "#3a9d5d", "#8e5bb5")


@dataclass(frozen=True)
class Line:
    """Points in order; a dashed one is a limit rather than a measurement."""

    name: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """What is on it, how far it goes, and where its marks are."""

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    scale: Callable[[float], float] = float

    def place(self, value: float, start: float, end: float) -> float:
        """From `start` at its low end to `end` at its high end."""
        low, high = self.scale(self.low), self.scale(self.high)
        return start + (self.scale(value) - low) / ((high - low) or 1.0) * (end - start)


SHARES = Axis("share of all requests", 0.0, 1.0, [(n / 5, f"{n / 5:g}") for n in range(6)])


def whole_page(title: str, parts: Sequence[str]) -> str:
    """A page of these parts, which are HTML."""
    page = Template(Path(__file__).with_name("page.html").read_text())
    return page.substitute(title=escape(title), content="\n".join(parts))


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table as HTML; the first row is its head."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def limit(name: str, value: float, x: Axis) -> Line:
    """A dashed line across the chart."""
    return Line(name, [(0.0, value), (x.high, value)], is_dashed=True)


def linear(title: str, values: Sequence[float], low: float = 0.0) -> Axis:
    """An axis from `low` to a round number above all values."""
    high = max([*values, low])
    step = nice_step((high - low) or 1.0)
    count = max(1, math.ceil((high - low) / step - 1e-9))
    ticks = [(low + step * n, f"{low + step * n:g}") for n in range(count + 1)]
    return Axis(title, low, low + step * count, ticks)


def logarithmic(title: str, values: Sequence[float]) -> Axis:
    """An axis over whole powers of ten around all values above zero."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    high = max(high, low + 1)
    ticks = [(10.0**n, f"{10.0**n:g}") for n in range(low, high + 1)]
    return Axis(title, 10.0**low, 10.0**high, ticks, lambda value: math.log10(max(value, 10.0**low)))


def nice_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, so that a span has about five steps."""
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def chart(title: str, x: Axis, y: Axis, lines: Sequence[Line]) -> str:
    """The chart as an SVG element."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{_LEFT}" y="16">{escape(title)}</text>',
        *_grid(x, y),
    ]
    for number, line in enumerate(lines):
        parts += _line(line, x, y, COLOURS[number % len(COLOURS)], len(lines) - number)
    return "".join([*parts, "</svg>"])


def _grid(x: Axis, y: Axis) -> list[str]:
    parts = []
    for value, text in y.ticks:
        at = y.place(value, _LOWEST, _TOP)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHTMOST}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for value, text in x.ticks:
        at = x.place(value, _LEFT, _RIGHTMOST)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_LOWEST}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{_LOWEST + 15}" text-anchor="middle">{escape(text)}</text>')
    middle = (_LEFT + _RIGHTMOST) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x.title)}</text>')
    turned = f'transform="rotate(-90 14 {(_TOP + _LOWEST) / 2})" text-anchor="middle"'
    parts.append(f'<text class="tick" x="14" y="{(_TOP + _LOWEST) / 2}" {turned}>{escape(y.title)}</text>')
    return parts


def _line(line: Line, x: Axis, y: Axis, colour: str, from_right: int) -> list[str]:
    if not line.points:
        return []
    dash = ' stroke-dasharray="5 4"' if line.is_dashed else ""
    places = [(x.place(px, _LEFT, _RIGHTMOST), y.place(min(py, y.high), _LOWEST, _TOP)) for px, py in line.points]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    at = _RIGHTMOST - 105 * from_right
    parts = [
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.8"{dash} points="{path}"/>',
        f'<line x1="{at}" x2="{at + 18}" y1="12" y2="12" stroke="{colour}" stroke-width="2.5"{dash}/>',
        f'<text class="tick" x="{at + 23}" y="16">{escape(line.name)}</text>',
    ]
    if len(places) <= 40 and not line.is_dashed:
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.6" fill="{colour}"/>' for px, py in places]
    return parts

"""Draws a recovery as a PNG: answers per second by quality above, the slowest answers against the deadline below."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from benchmarks.tools.goodput_report import BIN_S, Recovery
from benchmarks.tools.openloop import DEADLINE_S

# Drawn larger and scaled down: Pillow's lines are not smooth.
SCALE = 2
SIZE = (1200, 640)
LEFT, RIGHT = 80, 30
INK, FAINT, SHADE = "#222222", "#d8d8d8", "#f4efe2"
COLOURS = {"full": "#2f7d5b", "partial": "#e0a93b", "fallback": "#8a8fa3", "failed": "#c0392b"}
LABELS = {"full": "full", "partial": "fewer members", "fallback": "fallback", "failed": "late or refused"}


@dataclass(frozen=True)
class Panel:
    """One pair of axes: pixels of its top and bottom, and the value at the top."""

    top: int
    bottom: int
    highest: float
    title: str

    def y(self, value: float) -> float:
        return self.bottom - min(value / self.highest, 1.0) * (self.bottom - self.top)


class Canvas:
    """Pillow with coordinates in final pixels, and seconds across."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.image = Image.new("RGB", (SIZE[0] * SCALE, SIZE[1] * SCALE), "white")
        self._draw = ImageDraw.Draw(self.image)

    def x(self, second: float) -> float:
        return LEFT + second / self._seconds * (SIZE[0] - LEFT - RIGHT)

    def box(self, left: float, top: float, right: float, bottom: float, colour: str) -> None:
        if bottom > top:
            self._draw.rectangle([round(edge * SCALE) for edge in (left, top, right, bottom)], fill=colour)

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1) -> None:
        scaled = [(x * SCALE, y * SCALE) for x, y in points]
        self._draw.line(scaled, fill=colour, width=round(width * SCALE), joint="curve")

    def text(self, x: float, y: float, text: str, anchor: str = "lm", size: int = 13) -> None:
        font = ImageFont.load_default(size * SCALE)
        place = (x * SCALE, y * SCALE)
        # The white rim keeps labels legible on top of bars.
        self._draw.text(place, text, fill=INK, font=font, anchor=anchor, stroke_width=SCALE, stroke_fill="white")

    def axes(self, panel: Panel, recovery: Recovery, step: float) -> None:
        """Shade the overload, draw the grid, write the title."""
        self.text(LEFT, panel.top - 14, panel.title, size=14)
        begins, ends = self.x(recovery.overload_begins_s), self.x(recovery.overload_ends_s)
        self.box(begins, panel.top, ends, panel.bottom, SHADE)
        value = 0.0
        while value <= panel.highest:
            self.line([(LEFT, panel.y(value)), (SIZE[0] - RIGHT, panel.y(value))], FAINT)
            self.text(LEFT - 8, panel.y(value), f"{value:g}", "rm")
            value += step
        for second in range(int(self._seconds) + 1):
            self.text(self.x(second), panel.bottom + 14, str(second), "mm")


def _round_step(highest: float) -> float:
    return next(step for step in (10, 20, 25, 50, 100, 200, 250, 500, 1000, 10**9) if highest / step <= 6)


def draw(recovery: Recovery, file: Path) -> None:
    """Write the picture; folders are made."""
    canvas = Canvas(len(recovery.bins) * BIN_S)
    totals = [(each.full + each.partial + each.fallback + each.failed) / BIN_S for each in recovery.bins]
    answers = Panel(95, 370, max([*totals, recovery.capacity]) * 1.1, "answers per second, in tenths of a second")
    canvas.axes(answers, recovery, _round_step(answers.highest))
    for place, each in enumerate(recovery.bins):
        counts = {"full": each.full, "partial": each.partial, "fallback": each.fallback, "failed": each.failed}
        _stack(canvas, answers.y, place, counts)
    _level_line(canvas, answers, recovery.capacity, "capacity in full quality")
    limit_ms = DEADLINE_S * 1000
    slowest = Panel(440, 580, limit_ms * 1.2, "slowest answer, ms")
    canvas.axes(slowest, recovery, 50)
    middles = [canvas.x((place + 0.5) * BIN_S) for place in range(len(recovery.bins))]
    points = [
        (x, slowest.y(each.slowest_ms)) for x, each in zip(middles, recovery.bins, strict=True) if each.slowest_ms
    ]
    canvas.line(points, COLOURS["full"], 1.5)
    _level_line(canvas, slowest, limit_ms, "deadline")
    canvas.text(SIZE[0] / 2, SIZE[1] - 18, "seconds", "mm")
    _legend(canvas, recovery)
    file.parent.mkdir(parents=True, exist_ok=True)
    canvas.image.resize(SIZE, Image.Resampling.LANCZOS).save(file, "PNG", optimize=True)


def _stack(canvas: Canvas, y: Callable[[float], float], place: int, counts: dict[str, int]) -> None:
    left, right = canvas.x(place * BIN_S), canvas.x((place + 1) * BIN_S)
    below = 0.0
    for kind, count in counts.items():
        above = below + count / BIN_S
        canvas.box(left, y(above), right, y(below), COLOURS[kind])
        below = above


def _level_line(canvas: Canvas, panel: Panel, value: float, label: str) -> None:
    canvas.line([(LEFT, panel.y(value)), (SIZE[0] - RIGHT, panel.y(value))], INK)
    canvas.text(SIZE[0] - RIGHT - 6, panel.y(value) - 9, label, "rm", 12)


def _legend(canvas: Canvas, recovery: Recovery) -> None:
    title = f"Overloaded threefold from {recovery.overload_begins_s:g} s to {recovery.overload_ends_s:g} s; "
    canvas.text(LEFT, 24, title + f"full quality again {recovery.recovery_s:.2f} s later", size=17)
    left = float(LEFT)
    for kind, colour in COLOURS.items():
        canvas.box(left, 46, left + 12, 58, colour)
        canvas.text(left + 18, 52, LABELS[kind], size=13)
        left += 60 + 8 * len(LABELS[kind])

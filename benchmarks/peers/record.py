"""What a run keeps: one row per contestant, written to a JSON file of its own after every scene."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tools.goodput_report import Level


@dataclass(frozen=True)
class Closed:
    """One closed loop; rps counts right answers of all three networks."""

    concurrency: int
    rps: float
    p50_ms: float
    p99_ms: float
    errors: int
    client_cpu: float
    foreign_cores: float


@dataclass(frozen=True)
class Overload:
    """One level of the open loop, and how many pictures the networks worked on."""

    level: Level
    worked: int
    # Whether the server was started anew for it, because the level before had left it unfit.
    is_fresh: bool

    @property
    def worked_per_answer(self) -> float:
        """Pictures worked on per useful answer; 0 if there was none."""
        useful = self.level.goodput * self.level.questions
        return self.worked / useful if useful else 0.0


@dataclass(frozen=True)
class Kill:
    """A worker was killed at half load; all figures are of requests that came up after that."""

    goodput: float
    failed_attempts: int
    # By status, or by how they ended; and the share of requests that got a fallback.
    failures: dict[str, int]
    fallbacks: float
    # After the kill, when the last attempt failed.
    last_failure_s: float
    workers_before: int
    workers_after: int
    foreign_cores: float


@dataclass(frozen=True)
class Poison:
    """Good and broken pictures sent at once: how many of the good were answered, and the statuses of all."""

    good_answered: int
    good: int
    good_statuses: dict[str, int]
    broken_statuses: dict[str, int]


@dataclass
class Row:
    """All that was measured of one contestant; what is missing was not asked for or not reached."""

    name: str
    is_ours: bool
    is_tuned: bool
    package: str
    version: str
    settings: str
    # Requests/s of the bare loop: at the beginning of the run, which all loads are multiples of, and just before.
    capacity: float
    bare_rps: float = 0.0
    first_answer_s: float = 0.0
    pss_mib: float = 0.0
    processes: int = 0
    closed: list[Closed] = field(default_factory=list)
    overload: list[Overload] = field(default_factory=list)
    kill: Kill | None = None
    poison: Poison | None = None
    # Why there is nothing, or nothing more.
    failure: str = ""
    seconds: float = 0.0

    def closed_rps(self, concurrency: int) -> float:
        """Requests/s at this concurrency; 0 if not measured."""
        return next((each.rps for each in self.closed if each.concurrency == concurrency), 0.0)

    def goodput(self, load: float) -> float | None:
        """The share of requests that the model answered in time at this load."""
        return next((each.level.goodput for each in self.overload if each.level.load == load), None)


@dataclass(frozen=True)
class Duel:
    """Timebound and the fastest peer in alternating closed loops, requests/s of each round."""

    peer: str
    ours: list[float]
    theirs: list[float]
    bare: list[float]


@dataclass
class Run:
    """Everything of one run."""

    machine: str
    began: str
    level_s: float
    rows: list[Row] = field(default_factory=list)
    duels: list[Duel] = field(default_factory=list)


def write_row(folder: Path, row: Row) -> None:
    """Keep what is known of a contestant so far."""
    _write(folder / f"{row.name}.json", asdict(row))


def write_run(folder: Path, run: Run) -> None:
    """Keep what is not of one contestant."""
    _write(folder / "run.json", {**asdict(run), "rows": [row.name for row in run.rows]})


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    # At once or not at all: an interruption leaves the file before.
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(file)


def read_run(folder: Path) -> Run:
    """A run from the files it wrote."""
    content = json.loads((folder / "run.json").read_text())
    rows = [_row(json.loads((folder / f"{name}.json").read_text())) for name in content.pop("rows")]
    duels = [Duel(**duel) for duel in content.pop("duels")]
    return Run(**content, rows=rows, duels=duels)


def _row(content: dict[str, Any]) -> Row:
    content["closed"] = [Closed(**each) for each in content["closed"]]
    content["overload"] = [Overload(**{**each, "level": _level(each["level"])}) for each in content["overload"]]
    content["kill"] = Kill(**content["kill"]) if content["kill"] else None
    content["poison"] = Poison(**content["poison"]) if content["poison"] else None
    return Row(**content)


def _level(content: dict[str, Any]) -> Level:
    statuses = {int(status): times for status, times in content["statuses"].items()}
    return Level(**{**content, "statuses": statuses})

"""Measures the corrector on held-out lines, and tunes on others how sure it must be of an edit.

python examples/correction/evaluate.py --candidates candidates.tsv.gz --tune    # dev lines; writes limits.json
python examples/correction/evaluate.py --candidates candidates.tsv.gz           # test lines; prints the table
python examples/correction/evaluate.py                                          # the few shipped lines
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from editing import Editor, Limits
from language import Language
from sentences import CANDIDATES, Alphabet, encode

HERE = Path(__file__).parent
START = Limits(sure=0.9, doubt=0.8, keep=3.0, language=0.3, insert=2.0)
STEPS = {
    "sure": (0.8, 0.85, 0.9, 0.95),
    "doubt": (0.6, 0.7, 0.8, 1.0, 1.4),
    "language": (0.0, 0.15, 0.3, 0.5),
    "keep": (2.0, 3.0, 4.0),
    "insert": (0.6, 0.7, 0.8, 2.0),
}
"""What is tried, in this order; a limit of 2 is never reached."""
SURELY = 1.5
"""Every source must come out better on the dev lines by so many standard errors, or luck would choose."""


@dataclasses.dataclass(frozen=True)
class Judged:
    """One held-out line with what the network said of it."""

    source: str
    truth: str
    candidates: list[str]
    table: Any
    output: dict[str, Any]


@cache
def errors(text: str, truth: str) -> int:
    """Characters to change, add and remove."""
    above = list(range(len(truth) + 1))
    for i, a in enumerate(text, 1):
        row = [i]
        for j, b in enumerate(truth, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]


def read(file: Path, part: str) -> Iterator[tuple[str, str, list[str]]]:
    """Source, truth and candidates of the lines of one part."""
    is_packed = file.suffix == ".gz"
    with gzip.open(file, "rt", encoding="utf-8") if is_packed else file.open(encoding="utf-8") as lines:
        for line in lines:
            source, its_part, truth, *candidates = line.rstrip("\n").split("\t")
            if its_part == part:
                yield source, truth, candidates


def judge(
    session: Any, alphabet: Alphabet, lines: list[tuple[str, str, list[str]]], only_first: bool
) -> Iterator[Judged]:
    """Run the network over lines of like length together, as the server does."""
    lines = sorted(lines, key=lambda line: len(line[2][0]))
    names = [output.name for output in session.get_outputs()]
    for start in range(0, len(lines), 16):
        some = lines[start : start + 16]
        tables = [
            encode(alphabet, c[:1] if only_first else c, [alphabet.phonemes(text) for text in c]) for _, _, c in some
        ]
        padded = np.zeros((len(some), max(map(len, tables)), tables[0].shape[1]), np.int64)
        for row, table in zip(padded, tables, strict=True):
            row[: len(table)] = table
        outputs = session.run(None, {"tables": padded})
        for i, (source, truth, candidates) in enumerate(some):
            yield Judged(source, truth, candidates, tables[i], {n: o[i] for n, o in zip(names, outputs, strict=True)})


def best_candidate(line: Judged) -> str:
    """The candidate the network finds likeliest as a whole, and no edit."""
    scores = line.output["candidates"][: len(line.table), :CANDIDATES].sum(0)[: len(line.candidates)]
    return line.candidates[int(scores.argmax())]


def rates(lines: list[Judged], write: Callable[[Judged], str]) -> dict[str, float]:
    """The character error rate of each source."""
    wrong: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    for line in lines:
        wrong[line.source] += errors(write(line), line.truth)
        total[line.source] += len(line.truth)
    return {source: wrong[source] / total[source] for source in sorted(total)}


def write(editor: Editor, limits: Limits, line: Judged) -> str:
    """The corrected sentence."""
    return editor.corrected(line.candidates[0], line.output, limits)


def tune(editor: Editor, lines: list[Judged]) -> Limits:
    """Limit by limit, the value that helps the sources most on average, among those that surely help each of them."""
    limits = START
    for name, steps in STEPS.items():
        tried = []
        for step in steps:
            gains = relative_gains(lines, partial(write, editor, dataclasses.replace(limits, **{name: step})))
            mean = sum(gain for gain, _ in gains.values()) / len(gains)
            surest = min(gain / error if error else 0.0 for gain, error in gains.values())
            tried.append((min(surest, SURELY), mean, step))
            print(
                f"  {name} {step}: {100 * mean:.2f} % fewer errors, at least {surest:.1f} standard errors", flush=True
            )
        limits = dataclasses.replace(limits, **{name: max(tried)[-1]})
    return limits


def relative_gains(lines: list[Judged], write: Callable[[Judged], str]) -> dict[str, tuple[float, float]]:
    """Of each source the share of the first candidates' errors that went away, and its standard error."""
    gains: dict[str, list[int]] = defaultdict(list)
    before: dict[str, int] = defaultdict(int)
    for line in lines:
        wrong = errors(line.candidates[0], line.truth)
        gains[line.source].append(wrong - errors(write(line), line.truth))
        before[line.source] += wrong
    return {
        source: (sum(some) / before[source], float(np.std(some)) * len(some) ** 0.5 / before[source])
        for source, some in sorted(gains.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=Path, default=HERE / "samples.tsv", help="what candidates.py wrote")
    parser.add_argument("--tune", action="store_true", help="find the limits on the dev lines and write limits.json")
    parser.add_argument("--model", type=Path, default=HERE / "corrector.onnx")
    options = parser.parse_args()
    for file, writer in ((options.candidates, "candidates.py"), (options.model, "train.py export")):
        if not file.is_file():
            parser.error(f"{file} is not there; {writer} writes it")
    alphabet = Alphabet(HERE / "characters.tsv", HERE / "phonemes.json")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(options.model, settings, providers=["CPUExecutionProvider"])
    lines = list(read(options.candidates, "dev" if options.tune else "test"))
    judged = list(judge(session, alphabet, lines, only_first=False))
    editor = Editor(alphabet, Language(HERE / "language.npz"))
    if options.tune:
        limits = tune(editor, judged)
        (HERE / "limits.json").write_text(json.dumps(dataclasses.asdict(limits)) + "\n")
        print(limits)
    else:
        limits = Limits.read(HERE / "limits.json")
    alone = list(judge(session, alphabet, lines, only_first=True))
    report(editor, limits, judged, alone)


def report(editor: Editor, limits: Limits, judged: list[Judged], alone: list[Judged]) -> None:
    """Print each source's rates; `alone` are the same lines, judged without their other candidates."""
    full, silent = partial(write, editor, limits), partial(write, editor, dataclasses.replace(limits, language=0.0))
    columns = {
        "first candidate": rates(judged, lambda line: line.candidates[0]),
        "best of ten": rates(judged, lambda line: min(line.candidates, key=lambda text: errors(text, line.truth))),
        "network's choice": rates(judged, best_candidate),
        "corrected": rates(judged, full),
        "without language model": rates(judged, silent),
        "without other candidates": rates(alone, full),
    }
    print("| held-out lines | lines | " + " | ".join(columns) + " | errors |\n" + "|---" * (len(columns) + 3) + "|")
    gains = relative_gains(judged, full)
    for source in columns["corrected"]:
        count = sum(line.source == source for line in judged)
        cells = " | ".join(f"{100 * column[source]:.2f} %" for column in columns.values())
        gain, error = gains[source]
        print(f"| {source} | {count} | {cells} | {-100 * gain:+.1f} ± {100 * error:.1f} % |")
    changed = [line for line in judged if full(line) != line.candidates[0]]
    better = [errors(line.candidates[0], line.truth) - errors(full(line), line.truth) for line in changed]
    told = f"{sum(gain > 0 for gain in better)} for the better, {sum(gain < 0 for gain in better)} for the worse"
    print(f"{len(changed)} of {len(judged)} lines changed: {told}")


if __name__ == "__main__":
    main()

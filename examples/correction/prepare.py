"""Makes arrays of the texts for train.py, and the alphabet: every line with its candidates, and what errors look like.

python examples/correction/prepare.py --data DATA --candidates candidates.tsv.gz --work WORK
"""

from __future__ import annotations

import argparse
import gzip
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from corpus import read_lines
from language import write_language
from sentences import CANDIDATES, COLUMNS, NOTHING, PAD, START, UNKNOWN, Alphabet, align, encode

HERE = Path(__file__).parent
ROWS = 41
"""Rows of the longest table: forty characters and the start."""
WEIGHTS = {"aishell1": 2.0, "aishell3": 4.0, "magicdata": 1.5, "mandarin": 1.0, "accented": 0.7}
"""How often each source is drawn: the small ones more often than their share."""
CONFUSIONS = 64
"""How many mistakes are kept ready for each character."""


def read_candidates(file: Path) -> list[tuple[str, str, str, list[str]]]:
    """Source, part, truth and candidates of each line that candidates.py wrote."""
    rows = []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            source, part, truth, *candidates = line.rstrip("\n").split("\t")
            rows.append((source, part, truth, candidates))
    return rows


def write_alphabet(data: Path, rows: list[Any], out: Path) -> None:
    """Every character of the training truths and every usual one, with its usual reading in Taiwan."""
    import pypinyin

    counts: Counter[str] = Counter()
    for _, part, truth, candidates in rows:
        if part == "train":
            counts.update(truth)
            counts.update(candidates[0])
    for word, count in _words(data):
        counts.update(dict.fromkeys(word, count / 15))
    readings: dict[str, list[str]] = defaultdict(list)
    with gzip.open(data / "readings_mcbopomofo.tsv.gz", "rt", encoding="utf-8") as lines:
        for character, _, reading in (line.rstrip("\n").split("\t") for line in lines):
            readings[character].append(reading)
    with out.open("w", encoding="utf-8") as file:
        for character, count in counts.most_common():
            if count >= 3 and character.isprintable() and not character.isspace():
                mainland = pypinyin.lazy_pinyin(character, style=pypinyin.Style.TONE3)[0].removesuffix("1")
                known = readings.get(character, [mainland])
                sound = mainland if mainland in known else known[0]
                file.write(f"{character}\t{sound if sound.isascii() and sound.isalnum() else ''}\n")


def targets(alphabet: Alphabet, first: str, truth: str) -> Any:
    """For each row of the table: what stands in its place, and what is inserted after it."""
    places, between = align(first, truth)
    number = alphabet.number
    replaced = [START, *(number.get(c, UNKNOWN) if c else NOTHING for c in places)]
    inserted = [number.get(gap[0], UNKNOWN) if gap else NOTHING for gap in between]
    return np.array([replaced, inserted], np.int64).T


def prepare(data: Path, candidates_file: Path, work: Path) -> None:
    """Everything `fit` needs, in one compressed file."""
    rows = read_candidates(candidates_file)
    known = {(row[2], row[3][0]) for row in rows}
    for line in read_lines(data):  # those that candidates.py was given no time for come with one candidate
        if line.part == "train" and (line.truth, line.recognised) not in known:
            rows.append((line.source, line.part, line.truth, [line.recognised]))
    write_alphabet(data, rows, HERE / "characters.tsv")
    alphabet = Alphabet(HERE / "characters.tsv", HERE / "phonemes.json")
    rows = [row for row in rows if row[1] != "test"]
    tables = np.zeros((len(rows), ROWS, COLUMNS), np.int16)
    wanted = np.zeros((len(rows), ROWS, 2), np.int16)
    pairs: Counter[tuple[str, str]] = Counter()
    for i, (_, part, truth, candidates) in enumerate(rows):
        table, target = encode(alphabet, candidates), targets(alphabet, candidates[0], truth)
        table[:, 1:CANDIDATES][table[:, 1:CANDIDATES] == table[:, :1]] = PAD  # packs well; `fit` puts it back
        tables[i, : len(table)], wanted[i, : len(target)] = table, target
        if part == "train":
            places, _ = align(candidates[0], truth)
            pairs.update((b, a) for a, b in zip(candidates[0], places, strict=True) if b and a != b)
    sources = sorted({row[0] for row in rows})
    np.savez_compressed(
        work / "real.npz",
        tables=tables,
        wanted=wanted,
        source=np.array([sources.index(row[0]) for row in rows], np.int8),
        weight=np.array([WEIGHTS[row[0]] for row in rows], np.float32),
        is_dev=np.array([row[1] == "dev" for row in rows]),
        names=np.array(sources),
    )
    truths = {row[2] for row in rows if row[1] == "train"}
    np.savez_compressed(
        work / "made.npz",
        truths=_texts(alphabet, sorted(truths)),
        words=_texts(alphabet, _word_salads(data, 300_000)),
        confusions=_confusions(alphabet, pairs),
    )
    words = [(word, 0.3 * min(count, 2000) ** 0.5) for word, count in _words(data) if len(word) > 1]
    number = alphabet.number
    write_language(
        HERE / "language.npz",
        ([number.get(c, UNKNOWN) for c in truth] for truth in sorted(truths)),
        (([number.get(c, UNKNOWN) for c in word], weight) for word, weight in words),
    )
    print(f"{len(rows)} real lines, {len(truths)} truths, {len(alphabet.characters)} characters")


def _texts(alphabet: Alphabet, texts: list[str]) -> Any:
    array = np.zeros((len(texts), ROWS), np.int16)
    for i, text in enumerate(texts):
        numbers = [START, *(alphabet.number.get(c, UNKNOWN) for c in text)][:ROWS]
        array[i, : len(numbers)] = numbers
    return array


def _words(data: Path) -> list[tuple[str, int]]:
    with gzip.open(data / "words_mcbopomofo.tsv.gz", "rt", encoding="utf-8") as lines:
        next(lines)
        return [(word, int(n)) for word, n in (line.rstrip("\n").split("\t") for line in lines) if int(n) > 0]


def _word_salads(data: Path, count: int) -> list[str]:
    """Words in a row, drawn by how common they are: no grammar, but the vocabulary that the truths lack."""
    words = _words(data)
    names, weights = [w for w, _ in words], [n**0.6 * (0.2 if len(w) == 1 else 1.0) for w, n in words]
    chance = random.Random(0)
    drawn = iter(chance.choices(names, weights, k=count * 5))
    return ["".join(next(drawn) for _ in range(chance.randint(2, 5))) for _ in range(count)]


def _confusions(alphabet: Alphabet, pairs: Counter[tuple[str, str]]) -> Any:
    """For each character, what a recogniser may write instead: as it really did, by the same sound, by a like sound."""
    chance = random.Random(0)
    real: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (right, wrong), count in pairs.items():
        if right in alphabet.number and wrong in alphabet.number:
            real[alphabet.number[right]].append((alphabet.number[wrong], count))
    common = len(alphabet.characters) * 2 // 3  # the alphabet is in order of use
    by_sound: dict[int, list[int]] = defaultdict(list)
    mistaken: dict[int, Counter[int]] = defaultdict(Counter)  # syllable heard for syllable, as in the real pairs
    for number, character in enumerate(alphabet.characters):
        by_sound[alphabet.sound(character)[0]].append(number)
        for instead, count in real.get(number, ()):
            mistaken[alphabet.sound(character)[0]][alphabet.sound(alphabet.characters[instead])[0]] += count
    table = np.zeros((len(alphabet.characters), CONFUSIONS), np.int16)
    for number, character in enumerate(alphabet.characters):
        syllable = alphabet.sound(character)[0]
        same = [n for n in by_sound[syllable] if n != number and n < common] or [number]
        picks = chance.choices(same, k=CONFUSIONS) if syllable else [number] * CONFUSIONS
        if number in real:
            wrongs, counts = zip(*real[number], strict=True)
            picks[: CONFUSIONS // 2] = chance.choices(wrongs, [min(c, 20) for c in counts], k=CONFUSIONS // 2)
        if syllable and mistaken[syllable]:
            heard = chance.choices(*zip(*mistaken[syllable].items(), strict=True), k=CONFUSIONS // 5)
            picks[-len(heard) :] = [chance.choice(by_sound[s]) for s in heard]
        table[number] = picks
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the *.tsv.gz files")
    parser.add_argument("--candidates", type=Path, required=True, help="what candidates.py wrote")
    parser.add_argument("--work", type=Path, required=True, help="where the arrays go")
    options = parser.parse_args()
    texts = [options.data / name for name in ("words_mcbopomofo.tsv.gz", "readings_mcbopomofo.tsv.gz")]
    for file in (options.candidates, *texts):
        if not file.is_file():
            parser.error(f"{file} is not there; README.md says where it comes from")
    options.work.mkdir(parents=True, exist_ok=True)
    prepare(options.data, options.candidates, options.work)


if __name__ == "__main__":
    main()

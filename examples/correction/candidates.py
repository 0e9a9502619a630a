"""Simulates a recogniser's ten candidates around its one real line: sounds decoded again with a word 3-gram model.

The first candidate is the real line. The others are the best readings of its syllables, and of syllables that are
often mistaken for them, through a word lattice scored by the model that Debian's libime brings. Only for training and
measuring: a real recogniser sends its own list.

    python examples/correction/candidates.py --data DATA --lm zh_CN.lm --out candidates.tsv.gz
"""

from __future__ import annotations

import argparse
import gzip
import math
import multiprocessing
import random
import time
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from corpus import Line, read_lines

MOST = 10
BEAM = 12
WORDS_PER_SPAN = (0, 8, 6, 4, 3)  # by the span's length in characters
SAME_SOUND, LIKE_SOUND, UNKNOWN = -0.9, -1.8, -8.0  # log10, per character that differs from the recognised one
_LIKE = (("zh", "z"), ("ch", "c"), ("sh", "s"), ("ng", "n"), ("l", "n"), ("r", "n"), ("f", "h"), ("uo", "o"))


class Word(NamedTuple):
    text: str
    token: str  # as the language model knows it: simplified
    sounds: tuple[str, ...]
    weight: float


def alike(sound: str) -> str:
    """Syllables that are often mistaken for each other have this in common."""
    for mistaken, taken in _LIKE:
        sound = sound.replace(mistaken, taken)
    return sound


class Simulator:
    """Makes candidate lists. Needs kenlm, jieba (for its dictionary), opencc and pypinyin."""

    def __init__(self, lm: Path) -> None:
        import jieba
        import kenlm
        import opencc
        import pypinyin

        self._kenlm: Any = kenlm
        self._lm: Any = kenlm.Model(str(lm))
        self._sounds: Any = lambda text: pypinyin.lazy_pinyin(text, errors=list)
        self._simplify: Any = opencc.OpenCC("t2s").convert
        traditional: Any = opencc.OpenCC("s2tw").convert
        self._words: dict[tuple[str, ...], list[Word]] = defaultdict(list)
        start, after = kenlm.State(), kenlm.State()
        self._lm.NullContextWrite(start)
        dictionary = Path(jieba.__file__).with_name("dict.txt").read_text(encoding="utf-8")
        for row in dictionary.splitlines():
            token = row.split(" ")[0]
            if len(token) <= 4 and token in self._lm and all("\u4e00" <= c <= "\u9fff" for c in token):
                text, sounds = traditional(token), tuple(self._sounds(token))
                if len(text) == len(token) == len(sounds):
                    weight = self._lm.BaseScore(start, token, after)
                    self._words[tuple(map(alike, sounds))].append(Word(text, token, sounds, weight))
        for words in self._words.values():
            words.sort(key=lambda word: -word.weight)

    def candidates(self, recognised: str) -> list[str]:
        """Up to ten sentences, the recognised one first, each as long as it."""
        sounds = self._sounds(recognised)
        if len(sounds) != len(recognised):
            return [recognised]
        tokens = self._simplify(recognised)
        spans = self._spans(recognised, tokens if len(tokens) == len(recognised) else recognised, sounds)
        found = self._decode(spans, len(recognised))
        return [recognised, *(text for text in found if text != recognised)][:MOST]

    def _spans(self, recognised: str, tokens: str, sounds: list[str]) -> list[list[tuple[int, float, Word]]]:
        """For each place the words that may start there: length, penalty, word; the likeliest of each length."""
        keys = [alike(sound) for sound in sounds]
        spans = []
        for start in range(len(sounds)):
            own = Word(recognised[start], tokens[start], (sounds[start],), 0.0)
            here = [(1, 0.0 if own.token in self._lm else UNKNOWN, own)]
            for length in range(1, min(4, len(sounds) - start) + 1):
                scored = []
                for word in self._words.get(tuple(keys[start : start + length]), ())[:40]:
                    penalty = 0.0
                    for i in range(length):
                        if word.text[i] != recognised[start + i]:
                            penalty += SAME_SOUND if word.sounds[i] == sounds[start + i] else LIKE_SOUND
                    if not (length == 1 and word.text == own.text):
                        scored.append((word.weight + penalty, penalty, word))
                scored.sort(key=lambda entry: -entry[0])
                here += [(length, penalty, word) for _, penalty, word in scored[: WORDS_PER_SPAN[length]]]
            spans.append(here)
        return spans

    def _decode(self, spans: list[list[tuple[int, float, Word]]], length: int) -> list[str]:
        start = self._kenlm.State()
        self._lm.BeginSentenceWrite(start)
        beams: list[list[tuple[float, str, Any]]] = [[] for _ in range(length + 1)]
        beams[0] = [(0.0, "", start)]
        score, state = self._lm.BaseScore, self._kenlm.State
        for place, here in enumerate(spans):
            beams[place].sort(key=lambda path: -path[0])
            known: set[str] = set()
            for total, text, context in beams[place]:
                if text in known:  # the same text, cut into words differently
                    continue
                known.add(text)
                for span, penalty, word in here:
                    after = state()
                    gained = score(context, word.token, after)
                    beams[place + span].append((total + penalty + gained, text + word.text, after))
                if len(known) == BEAM:
                    break
        beams[length].sort(key=lambda path: -path[0])
        return list(dict.fromkeys(text for _, text, _ in beams[length]))


@cache
def _simulator(lm: Path) -> Simulator:
    return Simulator(lm)  # one per process


def _row(lm: Path, line: Line) -> str:
    return "\t".join((line.source, line.part, line.truth, *_simulator(lm).candidates(line.recognised)))


def _in_order(lines: Iterable[Line]) -> list[Line]:
    """Held-out lines first, then the train lines of every source mixed, so that an early end costs least."""
    shuffled = list(lines)
    random.Random(0).shuffle(shuffled)
    rank = {"test": 0, "dev": 0, "train": 1}
    first = {"aishell1": -0.5, "aishell3": -0.5}
    return sorted(shuffled, key=lambda line: rank[line.part] + (first.get(line.source, 0.0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the *_asr_1best.tsv.gz files")
    parser.add_argument("--lm", type=Path, required=True, help="zh_CN.lm of the package libime-data-language-model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=10**9, help="stop after so many lines")
    parser.add_argument("--minutes", type=float, default=math.inf, help="or after so many minutes")
    options = parser.parse_args()
    if not options.lm.is_file():
        parser.error(f"{options.lm} is not there; Debian's package libime-data-language-model brings it")
    lines = _in_order(read_lines(options.data))[: options.most]
    end = time.monotonic() + 60 * options.minutes
    with gzip.open(options.out, "wt", encoding="utf-8") as out, multiprocessing.Pool(2) as pool:
        for number, row in enumerate(pool.imap(partial(_row, options.lm), lines, chunksize=64), 1):
            out.write(row + "\n")
            if number % 4096 == 0:
                print(f"{number} of {len(lines)} lines", flush=True)
                if time.monotonic() > end:
                    break
        pool.terminate()


if __name__ == "__main__":
    main()

"""Turns a post into the numbers the network reads: links, names, emoji and hashtags first, then pieces of words."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

PAD, UNKNOWN, START, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
NAME, LINK = "@user", "http"
"""What every @name and every link becomes, in training as in service: who is meant must not sway the answer."""

LONGEST = 128
"""Pieces that are read of one post; the rest of a longer text is left out."""

_LINK = re.compile(r"(?:https?://|www\.)\S+")
_NAME = re.compile(r"@\w+")
_HASHTAG = re.compile(r"#(\w+)")
_TAG = re.compile(r"(?<![\w&/])#(\w+)")
"""A hashtag begins a word: neither x.org/page#section nor what is left of &amp;#39; has one."""
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)")
_LONG_DRAWN = re.compile(r"([^\W\d_])\1{2,}")
_REPEATED = re.compile(r"([^\w\s])\1{3,}")
_WORD = re.compile(rf"{NAME}|[^\W_]+|[^\s]")
_QUOTES = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "…": "...", "–": "-", "—": "-"})


class Words:
    """Splits posts into the pieces of one vocabulary. The place of a piece in the file is its number."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._numbers = {piece: number for number, piece in enumerate(pieces)}
        self._longest = max(map(len, pieces))
        self._start, self._end, self._unknown = (self._numbers[piece] for piece in (START, END, UNKNOWN))
        # Posts share most of their words, so how a word splits is remembered.
        self._pieces = lru_cache(20_000)(self._split)

    @classmethod
    def from_file(cls, path: Path) -> Words:
        """A vocabulary with one piece per line."""
        return cls(path.read_text(encoding="utf-8").splitlines())

    def ids(self, text: str) -> Ids:
        """The numbers of a post's pieces, between a start and an end."""
        numbers = [self._start]
        for word in words_of(text):
            numbers.extend(self._pieces(word))
            if len(numbers) >= LONGEST:
                break
        return np.array([*numbers[: LONGEST - 1], self._end], np.int64)

    def _split(self, word: str) -> tuple[int, ...]:
        """The longest piece that fits, again and again; a word that cannot be made of pieces is unknown."""
        numbers: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                number = self._numbers.get(prefix + word[start:end])
                if number is not None:
                    numbers.append(number)
                    start = end
                    break
            else:
                return (self._unknown,)
        return tuple(numbers)


def words_of(text: str) -> list[str]:
    """The words and signs of a post, in lower case and without accents."""
    text = html.unescape(text).translate(_QUOTES)
    text = _LINK.sub(f" {LINK} ", text)
    text = _NAME.sub(f" {NAME} ", text)
    text = _HASHTAG.sub(lambda tag: " # " + _HUMP.sub(" ", tag[1]) + " ", text)
    text = "".join(_spelled_out(text)).lower()
    text = _LONG_DRAWN.sub(r"\1\1", text)  # soooo, sooo and soo are one word
    text = _REPEATED.sub(r"\1\1\1", text)
    return _WORD.findall(text)


def hashtags_of(text: str) -> list[str]:
    """The hashtags of a post, in lower case and without their sign."""
    return [tag.lower() for tag in _TAG.findall(_LINK.sub(" ", html.unescape(text)))]


def _spelled_out(text: str) -> Iterator[str]:
    """The text with accents taken off and each emoji replaced by its name, once for a row of the same."""
    last = ""
    for sign in unicodedata.normalize("NFD", text) if not text.isascii() else text:
        if sign < "\x80":
            yield sign
            last = sign
            continue
        kind = unicodedata.category(sign)
        if kind == "So":
            if sign != last:
                yield _emoji_name(sign)
            last = sign
        elif kind not in ("Mn", "Cf", "Sk", "Cc"):  # accents, joiners, skin tones
            yield sign
            last = sign


def _emoji_name(sign: str) -> str:
    name = unicodedata.name(sign, "")
    # A flag is two letters that say nothing of a feeling.
    return " " if name.startswith("REGIONAL") else f" {name} "

"""How examples/sentiment reads a post before its network does."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from tests.examples.loading import load_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "sentiment"


@pytest.fixture(scope="module")
def words() -> ModuleType:
    return load_file("sentiment_words", EXAMPLE / "words.py")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("@anna see https://t.co/x1 www.a.b", "@user see http http"),
        ("Soooo good!!!!!!", "soo good ! ! !"),
        ("#HelloBlueSkies", "# hello blue skies"),
        (
            "Caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{LEFT DOUBLE QUOTATION MARK}ok\N{RIGHT DOUBLE QUOTATION MARK}",
            'cafe " ok "',
        ),
        ("fish &amp; chips", "fish & chips"),
        ("no\N{POUTING FACE}\N{POUTING FACE}", "no pouting face"),
        ("\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-3}", "thumbs up sign"),
        ("\N{REGIONAL INDICATOR SYMBOL LETTER D}\N{REGIONAL INDICATOR SYMBOL LETTER E}", ""),
        (" \t\n", ""),
    ],
)
def test_post_becomes_plain_words(words: ModuleType, text: str, read: str) -> None:
    assert " ".join(words.words_of(text)) == read


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("I love the #NightTram (#late) #gem\N{LATIN SMALL LETTER U WITH DIAERESIS}tlich", "nighttram late gemütlich"),
        ("I&#39;m so sad", ""),
        ("I&amp;#39;m so sad", ""),
        ("&quot;#so&quot; sad", "so"),
        ("see http://x.org/page#section and www.x.org/#top #now", "now"),
        ("x.org/#top, x.org/page#section", ""),
    ],
)
def test_hashtags_begin_a_word(words: ModuleType, text: str, topics: str) -> None:
    assert words.hashtags_of(text) == topics.split()


def test_longest_piece_is_taken_first(words: ModuleType) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "unhappy", "##happy", "##ness", "a"]
    reader = words.Words(pieces)
    assert reader.ids("unhappyness a").tolist() == [2, 5, 7, 8, 3]
    assert reader.ids("b").tolist() == [2, 1, 3]


def test_long_post_is_cut_and_still_ends(words: ModuleType) -> None:
    reader = words.Words(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"])
    ids = reader.ids("a " * 1000)
    assert len(ids) == words.LONGEST
    assert ids[-1] == 3


def test_every_letter_of_the_alphabet_can_be_spelled(words: ModuleType) -> None:
    reader = words.Words.from_file(EXAMPLE / "vocabulary.txt")
    assert 1 not in reader.ids("qzxjvkwyfgh 0123456789 !?.,:;()#@'\"&%$*-+=/").tolist()

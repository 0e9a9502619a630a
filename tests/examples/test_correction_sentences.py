"""How examples/correction lays a request's candidates side by side, however long a client makes them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.examples.loading import load_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "correction"
FIRST = "今天天氣很好"


@pytest.fixture(scope="module")
def sentences() -> ModuleType:
    return load_file("correction_sentences", EXAMPLE / "sentences.py")


@pytest.fixture(scope="module")
def alphabet(sentences: ModuleType) -> Any:
    return sentences.Alphabet(EXAMPLE / "characters.tsv", EXAMPLE / "phonemes.json")


def test_a_candidate_longer_than_the_limit_is_left_out(sentences: ModuleType, alphabet: Any) -> None:
    table = sentences.encode(alphabet, [FIRST, "今天天器很好", "你" * (sentences.LONGEST + 1)])
    assert (table == sentences.encode(alphabet, [FIRST, "今天天器很好"])).all()


def test_a_candidate_at_the_limit_is_read(sentences: ModuleType, alphabet: Any) -> None:
    table = sentences.encode(alphabet, [FIRST, "你" * sentences.LONGEST])
    assert (table[1:, 1] == alphabet.number["你"]).all()


def test_phonemes_that_cannot_fit_are_not_even_read(alphabet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = alphabet.sounds(FIRST, None)
    monkeypatch.setattr(alphabet, "_heard", lambda phonemes: pytest.fail(f"read {len(phonemes)} signs"))
    assert alphabet.sounds(FIRST, "a " * 300_000) == usual


def test_phonemes_that_fit_are_heard(alphabet: Any) -> None:
    slow = "  ".join(alphabet.phonemes(FIRST).split())
    assert alphabet.sounds("一" * len(FIRST), slow) == alphabet.sounds(FIRST, None)

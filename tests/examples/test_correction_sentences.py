"""How examples/correction lays a request's candidates side by side, however long a client makes them."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "correction"
FIRST = "今天天氣很好"


@pytest.fixture(scope="module")
def sentences() -> ModuleType:
    """The example's own module, under a name that no other example's can take."""
    spec = importlib.util.spec_from_file_location("correction_sentences", EXAMPLE / "sentences.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def alphabet(sentences: ModuleType) -> Any:
    return sentences.Alphabet(EXAMPLE / "characters.tsv", EXAMPLE / "phonemes.json")


def test_a_candidate_longer_than_the_limit_is_left_out(sentences: ModuleType, alphabet: Any) -> None:
    table = sentences.encode(alphabet, [FIRST, "今天天器很好", "你" * (sentences.LONGEST + 1)])
    assert (table == sentences.encode(alphabet, [FIRST, "今天天器很好"])).all()


def test_a_candidate_at_the_limit_is_read(sentences: ModuleType, alphabet: Any) -> None:
    table = sentences.encode(alphabet, [FIRST, "你" * sentences.LONGEST])
    assert (table[1:, 1] == alphabet.number["你"]).all()


def test_phonemes_that_cannot_fit_cost_no_time(alphabet: Any) -> None:
    start = time.process_time()
    assert alphabet.sounds(FIRST, "a " * 300_000) == alphabet.sounds(FIRST, None)
    assert time.process_time() - start < 0.5


def test_phonemes_that_fit_are_heard(alphabet: Any) -> None:
    slow = "  ".join(alphabet.phonemes(FIRST).split())
    assert alphabet.sounds("一" * len(FIRST), slow) == alphabet.sounds(FIRST, None)

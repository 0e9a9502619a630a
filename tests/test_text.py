"""Texts to arrays: one spelling, numbers for characters, padding with a mask."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.errors import SetupError
from timebound.text import PAD, UNKNOWN, Vocabulary, normalise, pad


def test_an_accent_typed_apart_joins_its_letter() -> None:
    assert normalise("  cafe\u0301\u3000 noir\n") == "caf\u00e9 noir"


@given(st.text())
def test_a_normalised_text_stays_as_it_is(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert unicodedata.is_normalized("NFC", once)


def test_characters_get_numbers_in_order_after_padding_and_unknown() -> None:
    vocabulary = Vocabulary("abca")
    assert (vocabulary.characters, len(vocabulary)) == ("abc", 5)
    assert vocabulary.encode("cabz").tolist() == [4, 2, 3, UNKNOWN]
    assert vocabulary.encode("ab").dtype == np.int64


@pytest.mark.parametrize(("text", "numbers"), [("", [PAD] * 3), ("ab", [2, 3, PAD]), ("abcabc", [2, 3, 4])])
def test_a_length_cuts_or_pads(text: str, numbers: list[int]) -> None:
    assert Vocabulary("abc").encode(text, 3).tolist() == numbers


def test_a_vocabulary_may_come_as_a_list() -> None:
    assert Vocabulary(["a", "b"]).encode("b").tolist() == [3]
    with pytest.raises(SetupError, match="at least one character"):
        Vocabulary("")


@given(st.text("abc", max_size=8), st.integers(8, 12))
def test_decoding_gives_the_text_back(text: str, length: int) -> None:
    vocabulary = Vocabulary("abc")
    assert vocabulary.decode(vocabulary.encode(text, length)) == text
    assert vocabulary.decode([UNKNOWN]) == "?"


def test_padding_makes_one_batch_and_says_where_something_is() -> None:
    batch, mask = pad([np.array([5, 6, 7]), np.array([8]), np.array([], np.int64)])
    assert batch.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]
    assert mask.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert (batch.dtype, mask.dtype) == (np.int64, np.bool_)


@pytest.mark.parametrize(("options", "width"), [({}, 3), ({"multiple": 8}, 8), ({"length": 2}, 2), ({"length": 5}, 5)])
def test_the_width_can_be_rounded_up_or_set(options: dict[str, int], width: int) -> None:
    batch, mask = pad([np.array([1, 2, 3]), np.array([4])], **options)
    assert batch.shape == mask.shape == (2, width)
    assert mask.sum() == min(3, width) + 1


def test_arrays_of_vectors_are_padded_in_their_first_axis() -> None:
    batch, mask = pad([np.ones((2, 4), np.float32), np.ones((1, 4), np.float32)], value=-1)
    assert (batch.shape, batch.dtype, mask.shape) == ((2, 2, 4), np.float32, (2, 2))
    assert batch[1, 1].tolist() == [-1] * 4


def test_nothing_cannot_be_padded() -> None:
    with pytest.raises(ValueError, match="at least one array"):
        pad([])

from __future__ import annotations

import pytest

from timebound.errors import SetupError
from timebound.lab import requirements

FIGURES = {"requests": 100, "failed": 0, "goodput": 0.995, "p99_ms": 240.0, "p99_9_ms": 900.0, "late": 0}


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("goodput>=0.99", True),
        ("goodput >= 99.9%", False),
        ("p99<250ms", True),
        ("p99<0.2s", False),
        ("p99.9<=0.9s", True),
        ("late==0", True),
        ("late>0", False),
    ],
)
def test_a_requirement_is_held_against_the_figure(text: str, is_met: bool) -> None:
    (requirement,) = requirements.read(text)
    assert requirement.is_met(FIGURES) is is_met


def test_several_are_read_in_order_and_say_what_was_found() -> None:
    first, second = requirements.read("goodput>=0.99, p99<100ms")
    assert (first.text, second.text) == ("goodput>=0.99", "p99<100ms")
    assert second.found(FIGURES) == "it is 240 ms"


def test_latencies_of_no_answer_meet_nothing() -> None:
    (requirement,) = requirements.read("p99<250ms")
    nothing = {**FIGURES, "p99_ms": 0.0, "failed": 100}
    assert not requirement.is_met(nothing)
    assert requirement.found(nothing) == "nothing was answered"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("goodput", "is no comparison"),
        ("godput>0.9", "there is no figure 'godput'"),
        ("p99<250", "give its unit"),
        ("p99<5%", "is a time and no share"),
        ("goodput>5ms", "takes no unit"),
        ("p99<1.2.3ms", "is no number"),
    ],
)
def test_a_requirement_that_cannot_be_read_is_named(text: str, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        requirements.read(text)

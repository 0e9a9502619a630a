"""Any callable as a backend."""

from __future__ import annotations

from typing import Any

import pytest

from timebound.backends.base import Backend
from timebound.backends.python import python
from timebound.errors import SetupError


def test_a_callable_gets_the_batch_and_its_answer_comes_back() -> None:
    net = python(lambda batch: [item * 2 for item in batch])
    assert net([1, 2]) == [2, 4]


def test_a_callable_is_a_backend_that_says_nothing_of_its_inputs() -> None:
    net = python(len)
    assert isinstance(net, Backend)
    assert (net.kind, list(net.inputs)) == ("python", [])


def test_a_callable_is_parallel_only_if_it_says_so() -> None:
    assert not python(len).parallel
    assert python(len, parallel=True).parallel


def test_what_the_callable_raises_is_not_dressed_up() -> None:
    def fail(batch: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        python(fail)([])


def test_what_cannot_be_called_is_refused_at_start() -> None:
    with pytest.raises(SetupError, match=r"^python\(\) takes a callable, not a int$"):
        python(7)  # type: ignore[arg-type]

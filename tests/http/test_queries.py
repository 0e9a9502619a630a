"""What a query string may say: nothing that takes the event loop long to read."""

from __future__ import annotations

import pytest

from timebound.errors import RequestError
from timebound.form import URLENCODED
from timebound.http.surfaces.forms import Forms
from timebound.http.target import TARGET
from timebound.types import ModelInfo

SCHEMA = {"type": "object", "properties": {"each": {"type": "array", "items": {"type": "number"}}}}


@pytest.fixture
def forms() -> Forms:
    return Forms(ModelInfo(name="sum", request_schema=SCHEMA, methods=("GET", "POST")))


@pytest.mark.parametrize("tiny", [b"1e-309", b"1E-309", b"1e%2d309", b"1%65-309"])
def test_a_query_of_numbers_that_take_long_is_to_be_a_post(forms: Forms, tiny: bytes) -> None:
    asked = b"each=[%b]" % b",".join([tiny] * 600)
    with pytest.raises(RequestError, match="send a POST"):
        forms.read({TARGET: b"/sum?" + asked}, b"", None)
    assert forms.elsewhere({b"content-type": URLENCODED}, asked) is not None


def test_a_query_of_usual_numbers_is_read(forms: Forms) -> None:
    asked = forms.read({TARGET: b"/sum?each=[%b]" % b",".join([b"0.5"] * 600)}, b"", None)
    assert asked is not None
    assert asked.items[0].body.count(b"0.5") == 600

"""`infer` of both clients against real servers: arrays there and back, under the same deadline, key and errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from tests.live.serving import MODELS, Serving
from tests.models.onnx_files import save_doubler

from timebound import AsyncClient, Client
from timebound.admission.keys import hash_of
from timebound.client import Answer, BadRequest, Busy, DeadlineMissed, NotAllowed, NotFound

pytestmark = pytest.mark.live

SLACK_S = 1.0
"""How late a busy machine may wake whoever waits for a deadline."""


class Infer(Protocol):
    def __call__(self, url: str, model: str, inputs: Any, **options: Any) -> Answer[Any]: ...


def infer_blocking(url: str, model: str, inputs: Any, **options: Any) -> Answer[Any]:
    with Client(url, **options.pop("settings", {})) as client:
        return client.infer(model, inputs, **options)


def infer_async(url: str, model: str, inputs: Any, **options: Any) -> Answer[Any]:
    async def inferred() -> Answer[Any]:
        async with AsyncClient(url, **options.pop("settings", {})) as client:
            return await client.infer(model, inputs, **options)

    return asyncio.run(inferred())


@pytest.fixture(params=[infer_blocking, infer_async], ids=["blocking", "async"])
def infer(request: pytest.FixtureRequest) -> Infer:
    asked: Infer = request.param
    return asked


@pytest.fixture(scope="module")
def doubler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("doubler")
    with Serving(save_doubler(folder / "doubler.onnx"), "--workers", "1") as serving:
        yield serving


@pytest.fixture(scope="module")
def kinds() -> Iterator[Serving]:
    with Serving(MODELS / "tensors.py", "--workers", "1") as serving:
        yield serving


def test_arrays_of_many_items_come_back_as_arrays(doubler: Serving, infer: Infer) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(8, 3)
    answer = infer(doubler.url, "doubler", {"x": rows}, deadline=20.0)
    np.testing.assert_array_equal(answer.outputs["y"], rows * 2)
    assert answer.outputs["y"].dtype == np.float32
    assert (answer.quality, answer.source, answer.attempts) == ("full", "computed", 1)
    assert answer.media == "application/octet-stream"
    assert answer.batch >= 1
    assert answer.key is not None


def test_texts_numbers_and_parameters_reach_a_class(kinds: Serving, infer: Infer) -> None:
    inputs = {"text": ["über"], "number": np.array([1.5]), "counts": np.array([[1, 2, 3]])}
    answer = infer(kinds.url, "kinds", inputs, parameters={"temperature": 2.0}, deadline=20.0)
    assert answer.outputs["text"].tolist() == ["ÜBER".encode()]
    assert answer.outputs["number"].tolist() == [3.0]
    assert answer.outputs["counts"].tolist() == [[1, 2, 3]]
    only = infer(kinds.url, "kinds", inputs, outputs=["number"], deadline=20.0)
    assert list(only.outputs) == ["number"]


def test_the_same_key_is_the_same_request(kinds: Serving, infer: Infer) -> None:
    inputs = {"text": ["a"], "number": np.array([1.5]), "counts": np.array([[1]])}
    key = f"tensors-{infer is infer_async}"
    first, second = (infer(kinds.url, "kinds", inputs, key=key, deadline=20.0) for _ in range(2))
    assert (first.source, second.source) == ("computed", "stored")
    assert second.outputs["number"].tolist() == [1.5]


def test_what_is_wrong_is_said_in_the_servers_words(doubler: Serving, infer: Infer) -> None:
    with pytest.raises(BadRequest, match="unexpected input 'z'; the model takes x"):
        infer(doubler.url, "doubler", {"z": np.zeros((1, 3), np.float32)}, deadline=20.0)
    with pytest.raises(NotFound, match="Request for unknown model: 'trebler'"):
        infer(doubler.url, "trebler", {"x": np.zeros((1, 3), np.float32)}, deadline=20.0)
    with pytest.raises(NotFound, match="version 7"):
        infer(doubler.url, "doubler", {"x": np.zeros((1, 3), np.float32)}, version="7", deadline=20.0)


def test_the_api_key_is_shown(tmp_path: Path, infer: Infer) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[me]\nhash = "{hash_of(b"sesame")}"\n')
    with Serving(save_doubler(tmp_path / "doubler.onnx"), "--workers", "1", "--keys", keys) as serving:
        rows = {"x": np.ones((1, 3), np.float32)}
        with pytest.raises(NotAllowed):
            infer(serving.url, "doubler", rows)
        answer = infer(serving.url, "doubler", rows, settings={"api_key": "sesame"}, deadline=20.0)
        assert answer.outputs["y"].tolist() == [[2.0, 2.0, 2.0]]


def test_no_call_takes_longer_than_its_deadline(kinds: Serving, infer: Infer) -> None:
    began = time.monotonic()
    with pytest.raises((DeadlineMissed, Busy)):  # Busy, once the server has learned how long it takes
        infer(kinds.url, "slow", {"seconds": [2.0]}, deadline=0.3)
    assert time.monotonic() - began < 0.3 + SLACK_S

"""API documents: made once for the same models, again for others, and never on the event loop."""

from __future__ import annotations

import asyncio
import json

from timebound.http.documents import Documents
from timebound.types import ModelInfo


def models(*names: str) -> list[ModelInfo]:
    return [ModelInfo(name=name) for name in names]


def test_a_document_is_made_once_until_a_model_is_loaded_anew() -> None:
    async def run() -> None:
        documents, served = Documents(needs_key=False), models("cats", "dogs")
        first, second = await asyncio.gather(*(documents.of(served, has_archives=False) for _ in range(2)))
        assert first is second, "also for who asks while it is made"
        assert await documents.of(list(served), has_archives=False) is first
        assert {"/predictions/cats", "/predictions/dogs"} <= json.loads(first)["paths"].keys()
        assert await documents.of(models("cats", "dogs"), has_archives=False) is not first
        assert (
            json.loads(await documents.of(served[:1], has_archives=False))["paths"]
            .keys()
            .isdisjoint({"/predictions/dogs"})
        ), "who may see one model sees that"
        assert await documents.of(served, has_archives=True) != first

    asyncio.run(run())


def test_the_event_loop_goes_on_while_a_large_document_is_made() -> None:
    async def run() -> int:
        asked = asyncio.create_task(Documents(needs_key=True).of(models(*map(str, range(300))), has_archives=False))
        turns = 0
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(run()) > 10


def test_documents_of_few_sets_of_models_are_kept() -> None:
    async def run() -> None:
        documents, served = Documents(needs_key=True), models(*map(str, range(40)))
        made = [await documents.of([one], has_archives=False) for one in served]
        assert await documents.of(served[39:], has_archives=False) is made[39]
        assert await documents.of(served[:1], has_archives=False) is not made[0]

    asyncio.run(run())

"""A gateway without a listener: asked from a program, in its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.live.gate import Gate
from tests.live.stages import Stages, kill
from tests.redis_server import RedisServer

import timebound as tb
from timebound.errors import RequestError, SetupError

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "models"
T = TypeVar("T")


def asked(model: str, ask: Callable[[tb.Gateway], Awaitable[T]], **options: Any) -> T:
    """What `ask` gets out of a gateway of this model."""

    async def run() -> T:
        async with tb.Gateway(MODELS / model, workers=1, profiles="none", **options) as gateway:
            return await ask(gateway)

    return asyncio.run(run())


def test_an_answer_says_what_and_how() -> None:
    answer = asked("echo.py", lambda gateway: gateway.ask("echo", {"value": 3}))
    assert (answer.value, answer.media) == ({"value": 3, "id": None}, "application/json")
    assert (answer.quality, answer.source, answer.members, answer.batch_size) == ("full", "computed", 1, 1)


def test_the_same_key_is_computed_once() -> None:
    async def twice(gateway: tb.Gateway) -> list[str]:
        both = await asyncio.gather(*(gateway.ask("echo", {"value": 1}, key="k") for _ in range(2)))
        return [answer.source for answer in (*both, await gateway.ask("echo", {"value": 1}, key="k"))]

    assert asked("echo.py", twice) == ["computed", "joined", "stored"]


@pytest.mark.parametrize(
    ("model", "item", "code"),
    [("echo", {"value": "x"}, "bad_input"), ("echo", b"{", "malformed_json"), ("other", {}, "unknown_model")],
)
def test_what_cannot_be_answered_is_raised_with_its_code(model: str, item: Any, code: str) -> None:
    with pytest.raises(RequestError) as raised:
        asked("echo.py", lambda gateway: gateway.ask(model, item))
    assert raised.value.code == code


def test_a_deadline_of_its_own_is_kept(gate: Gate) -> None:
    with pytest.raises(RequestError) as raised:
        asked("waits.py", lambda gateway: gateway.ask("waits", {"value": 1, "gate": str(gate.path)}, deadline=0.2))
    assert raised.value.code == "deadline_missed"


def test_who_stops_waiting_has_left(gate: Gate) -> None:
    async def leave(gateway: tb.Gateway) -> int:
        task = asyncio.create_task(gateway.ask("waits", {"value": 1, "gate": str(gate.path)}))
        while not gateway.requests.waiting:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return gateway.requests.waiting

    assert asked("waits.py", leave) == 0


def test_nothing_is_accepted_after_it_was_closed_and_what_was_is_answered() -> None:
    async def late(gateway: tb.Gateway) -> tuple[Any, str]:
        task = asyncio.create_task(gateway.ask("echo", {"value": 1}))
        while not gateway.requests.waiting:
            await asyncio.sleep(0)
        gateway.close()
        with pytest.raises(RequestError) as refused:
            await gateway.ask("echo", {"value": 2})
        return (await task).value, refused.value.code

    assert asked("echo.py", late) == ({"value": 1, "id": None}, "draining")


def test_one_that_was_started_is_not_started_again_and_goes_on() -> None:
    async def enter(gateway: tb.Gateway) -> Any:
        with pytest.raises(SetupError, match="make another"):
            await gateway.__aenter__()
        return (await gateway.ask("echo", {"value": 1})).value

    assert asked("echo.py", enter)["value"] == 1


def test_who_asks_in_another_event_loop_is_told_how() -> None:
    async def elsewhere(gateway: tb.Gateway) -> str:
        def ask() -> str:
            with pytest.raises(RequestError) as raised:
                asyncio.run(gateway.ask("echo", {"value": 1}))
            return raised.value.detail

        return await asyncio.to_thread(ask)

    assert "asyncio.run_coroutine_threadsafe" in asked("echo.py", elsewhere)


@pytest.mark.parametrize(
    ("item", "key", "words"),
    [({"value": object()}, None, "as JSON"), ("\ud800", None, "as JSON"), ({"value": 1}, 5, "the key is 5")],
)
def test_what_is_no_item_or_no_key_is_said_in_a_sentence(item: Any, key: Any, words: str) -> None:
    with pytest.raises(tb.BadInput, match=words):
        asked("echo.py", lambda gateway: gateway.ask("echo", item, key=key))


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(SetupError, match="where an event loop runs"):
        tb.Gateway(MODELS / "echo.py")
    with pytest.raises(SetupError, match="'worker' is no option"):
        asked("echo.py", lambda gateway: gateway.ask("echo", {}), worker=1)


def test_it_binds_no_port_and_leaves_no_process() -> None:
    async def look(gateway: tb.Gateway) -> list[int]:
        await gateway.ask("echo", {"value": 1})
        return [worker["pid"] for worker in gateway.status()["workers"]]

    for pid in asked("echo.py", look):
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("deadline", [0, -1.0, float("nan"), float("inf"), "250ms", True])
def test_a_deadline_that_is_none_is_refused(deadline: Any) -> None:
    with pytest.raises(RequestError, match="give a number of seconds above zero"):
        asked("echo.py", lambda gateway: gateway.ask("echo", {"value": 1}, deadline=deadline))


def test_fewer_workers_are_fewer_even_while_one_is_being_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPS", str(tmp_path))
    stages = Stages(tmp_path)

    def workers(gateway: tb.Gateway) -> list[dict[str, Any]]:
        return [each for each in gateway.status()["workers"] if not each["is_understudy"] and not each["is_leaving"]]

    async def until(gateway: tb.Gateway, count: int, generation: int) -> list[int]:
        async with asyncio.timeout(20.0):
            while [each["generation"] for each in workers(gateway) if each["is_up"]] != [generation] * count:
                await asyncio.sleep(0.02)
        return [each["pid"] for each in workers(gateway)]

    async def run() -> None:
        async with tb.Gateway(MODELS / "steps.py", workers=2, profiles="none") as gateway:
            pids = await until(gateway, 2, 1)
            with stages.held("load") as open_gate:
                kill(pids[0])  # who is to replace it cannot load yet
                await until(gateway, 1, 1)
                scaling = asyncio.create_task(gateway.scale(1))
                await asyncio.sleep(0)
                open_gate()
                await scaling
            assert len(await until(gateway, 1, 2)) == 1

    asyncio.run(run())


def _is_left(pids: list[int]) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_cancellation_while_leaving_leaves_nothing_behind(gate: Gate, redis: RedisServer) -> None:
    async def run() -> tuple[list[int], set[str]]:
        pids: list[int] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                async with tb.Gateway(MODELS / "waits.py", workers=1, profiles="none", store=redis.url) as gateway:
                    pids = [worker["pid"] for worker in gateway.status()["workers"]]
                    waiting = asyncio.create_task(gateway.ask("waits", {"value": 1, "gate": str(gate.path)}))
                    while not gateway.requests.waiting:
                        await asyncio.sleep(0)
        waiting.cancel()
        async with asyncio.timeout(10.0):
            while _is_left(pids):
                await asyncio.sleep(0.05)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return pids, {task.get_coro().__qualname__ for task in tasks}  # type: ignore[union-attr]

    pids, tasks = asyncio.run(run())
    assert pids
    assert "Link._keep_connected" not in tasks


def test_an_error_at_the_start_leaves_nothing_behind(tmp_path: Path, redis: RedisServer) -> None:
    (tmp_path / "broken.py").write_text("import timebound as tb\n\nclass Broken(tb.Model):\n    infer = None\n")

    async def run() -> set[str]:
        with pytest.raises(SetupError):
            await tb.Gateway(tmp_path / "broken.py", workers=1, profiles="none", store=redis.url).start()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return {task.get_coro().__qualname__ for task in tasks}  # type: ignore[union-attr]

    assert "Link._keep_connected" not in asyncio.run(run())

"""Brings new code, new files and new versions in under load; what cannot be loaded changes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from timebound import versions
from timebound.clock import Clock
from timebound.errors import SetupError
from timebound.events import Divided, Events, Reloaded, ReloadFailed
from timebound.target import check_target, each_of, parted, resolved
from timebound.versions import Traffic
from timebound.work_folder import enter
from timebound.workers.supervisor import Supervisor

log = logging.getLogger("timebound.server")


class Releases:
    """What is served of a target, and how each model's requests are divided among its versions."""

    def __init__(self, target: Path, clock: Clock, events: Events) -> None:
        check_target(target)
        self.target = resolved(target)
        self.folder: Path | None = None
        """Where the process works, if it is to be entered anew by its name before anything is loaded again."""
        self._clock = clock
        self._events = events
        self.traffic = self._read_traffic()
        self._turn = asyncio.Lock()  # whoever brings something in, one at a time
        self._next: asyncio.Task[list[str]] | None = None

    def _read_traffic(self) -> dict[str, Traffic]:
        folder, *more = each_of(self.target)
        return {} if more else versions.read_all(folder)

    def _signature(self) -> tuple[int, ...]:
        return tuple(versions.signature(parted(each)[0]) for each in each_of(self.target))

    def enter_folder(self) -> None:
        """Go to where the name of the folder leads now: files may be named from there."""
        if self.folder is not None:
            enter(self.folder)

    async def reload(self, supervisor: Supervisor) -> list[str]:
        """Load the target again and switch to it; the models served now. Raises `SetupError`.

        Who asks while another one is under way waits for the next, with all others who do: it reads what is there then.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._reload_in_turn(supervisor))
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())  # all may have left
        return await asyncio.shield(self._next)

    async def scale(self, workers: int, supervisor: Supervisor) -> None:
        """Have so many workers, in a new generation; raises `SetupError` if it cannot be loaded."""
        async with self._in_turn(supervisor):
            if supervisor.workers_wanted != workers:  # of those, some may be about to be replaced
                await supervisor.reload(msgspec.structs.replace(supervisor.plan, workers=workers))

    @asynccontextmanager
    async def _in_turn(self, supervisor: Supervisor) -> AsyncIterator[None]:
        """One at a time, and nobody before the start is over: new workers would send away those it waits for."""
        async with self._turn:
            await supervisor.started()
            yield

    async def _reload_in_turn(self, supervisor: Supervisor) -> list[str]:
        async with self._in_turn(supervisor):
            self._next = None
            return await self._reload(supervisor)

    async def _reload(self, supervisor: Supervisor) -> list[str]:
        try:
            names = await self._load(supervisor)
        except SetupError as error:
            self._events.emit(ReloadFailed(str(error)))
            raise
        self._events.emit(Reloaded(names))
        return names

    async def _load(self, supervisor: Supervisor) -> list[str]:
        began = self._clock.now()
        self.enter_folder()
        check_target(self.target)
        before, self.traffic = self.traffic, self._read_traffic()
        plan = msgspec.structs.replace(supervisor.plan, versions=versions.to_load(self.traffic))
        try:
            models = await supervisor.reload(plan)
        except BaseException:
            self.traffic = before
            raise
        names = [info.name for info in models]
        log.info("reloaded", extra={"models": ", ".join(names), "in_s": round(self._clock.now() - began, 2)})
        return names

    def traffic_of(self, model: str) -> Traffic:
        """How a model's requests are divided among its versions now; raises `SetupError` if it has none."""
        if model not in self.traffic:
            known = f"these have: {', '.join(self.traffic)}" if self.traffic else "no model here has"
            cure = "put them at <model>/<version>/ and serve the folder above"
            raise SetupError(f"{model!r} has no versions to choose from ({known}); {cure}")
        return self.traffic[model]

    async def divide(self, model: str, change: Callable[[Path], Traffic], supervisor: Supervisor) -> Traffic:
        """Divide a model's requests as `change` says of its folder, from now on and after a restart."""
        self.traffic_of(model)
        folder = self.target / model
        file = folder / versions.FILE
        async with self._in_turn(supervisor):
            before = file.read_bytes() if file.is_file() else None
            traffic = versions.write(folder, change(folder))
            try:
                await self._reload(supervisor)
            except BaseException:
                if before is None:
                    file.unlink()
                else:
                    file.write_bytes(before)
                raise
        total = sum(traffic.split.values())
        percent = {version: 100 * share / total for version, share in traffic.split.items()}
        self._events.emit(Divided(model, percent, traffic.shadow))
        return traffic

    async def watch(self, supervisor: Supervisor) -> None:
        """Reload when files of the target have changed, and then stayed as they are for a second; runs for ever."""
        loaded = seen = self._signature()
        while True:
            await asyncio.sleep(1.0)
            try:
                now = await asyncio.to_thread(self._signature)
                if now == seen and now != loaded:
                    loaded = now
                    log.info("the target has changed")
                    await self.reload(supervisor)
                seen = now
            except SetupError as error:
                log.error("%s", error)
            except Exception:  # whatever is wrong with the files now, the next change may fix it
                log.exception("the target has changed and could not be loaded")

"""A replica of Ray Serve with a gateway inside. Needs Ray: nothing else imports this file."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import ray

from timebound.asking import Answer
from timebound.config import resolve
from timebound.errors import SetupError
from timebound.guest import Guest
from timebound.log import set_up_logging
from timebound.ray.node import NICE_CURE, findings

log = logging.getLogger("timebound.ray")

_NEVER: Any = object()
_UNSEEN_S = 0.01
"""Of each limit, for the ingress and for what Ray does in the replica before and after us. It takes 1 ms, and several
where cores are short; its own clock (`X-Request-Timeout-Seconds`) must not be first."""


class Replica:
    """Serves `target` with these options, and with what the node's TIMEBOUND_ variables say of others.

    Ray starts and stops the gateway through the ASGI app's lifespan: it is ready when the first worker has answered its
    warm-up run, and leaves when everything it accepted is answered. The workers end with it, however it ends.
    """

    def __init__(self, target: str, options: dict[str, Any]) -> None:
        config = resolve(options, os.environ, None)
        # Only our own lines: Ray has set up its own.
        set_up_logging(config.least_logged, as_json=config.logs_json, is_threaded=True, name="timebound")
        for sentence in findings(os.environ):
            log.warning("%s", sentence)
        self._guest = Guest(Path(target), config, cores=_cores())
        self._guest.nice_cure = NICE_CURE
        self._guest.is_watching = False  # Ray cancels the calls of clients that leave
        self._guest.unseen_s = _UNSEEN_S
        self._guest.says_ids = False  # Ray gives each request one, or takes the client's, and writes it in the answer
        self._user_config: Any = _NEVER

    def __serve_build_asgi_app__(self) -> Guest:
        return self._guest

    async def reconfigure(self, user_config: Any, rank: Any = None) -> None:
        """Load the target again, in place and under load, if `user_config` is another one than before.

        Ray calls this at the start and when it numbers its replicas anew as well, because of `rank`. What cannot be
        loaded is told in the log, and the old goes on: Ray would stop the replicas one by one if this raised.
        """
        before, self._user_config = self._user_config, user_config
        if before is _NEVER or before == user_config:
            return
        try:
            models = await self._guest.reload()
        except SetupError as error:
            log.error("user_config has changed, but the new code cannot be loaded; the old goes on: %s", error)
        else:
            log.info("user_config has changed; loaded again", extra={"models": models})

    async def check_health(self) -> None:
        """Raises if no request would be answered by a model; Ray replaces a replica that does so three times."""
        reason = self._guest.gateway.why_not_ready()
        if reason is not None:
            raise RuntimeError(f"timebound: {reason}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `timebound.ray:policy` decides by."""
        return self._guest.signals()

    async def ask(self, model: str, item: Any, deadline: float | None = None, key: str | None = None) -> Answer:
        """For other deployments: `await handle.ask.remote("mood", {...}, deadline=0.2)`, as `Gateway.ask`.

        A deadline is a length, the seconds that are left: machines do not share a clock.
        """
        return await self._guest.gateway.ask(model, item, deadline=deadline, key=key)


def _cores() -> int | None:
    """Cores that Ray has set aside for this replica (`num_cpus`); None if it counts none."""
    cores: float = ray.get_runtime_context().get_assigned_resources().get("CPU", 0)
    return max(1, int(cores)) if cores else None

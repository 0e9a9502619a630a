"""Which store: each is a file of its own, and a line in `types.STORES`."""

from __future__ import annotations

import asyncio
from importlib import import_module

from timebound.clock import Clock
from timebound.config import Config
from timebound.events import Events
from timebound.store.base import Store
from timebound.types import STORES


def open_store(config: Config, *, clock: Clock, events: Events, loop: asyncio.AbstractEventLoop) -> Store:
    """The store that the options ask for; raises `SetupError` if its URL cannot be read."""
    module = import_module(STORES[config.store.partition(":")[0]])
    opened: Store = module.open_store(config, clock=clock, events=events, loop=loop)
    return opened

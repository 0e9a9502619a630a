"""One Redis that several gateways share, over a fast connection of our own."""

from __future__ import annotations

import asyncio
import os
from functools import partial

from timebound.clock import Clock
from timebound.config import Config
from timebound.events import Events
from timebound.store.address import read_address
from timebound.store.lease import OwnKey
from timebound.store.link import Link
from timebound.store.memory import Memory
from timebound.store.scripts import Place
from timebound.store.shared import Shared, open_by


def open_store(config: Config, *, clock: Clock, events: Events, loop: asyncio.AbstractEventLoop) -> Shared:
    """The Redis of the options' URL; raises `SetupError` if that cannot be read."""
    return open_by(open_redis, config, clock=clock, events=events, loop=loop)


def open_redis(
    url: str,
    *,
    near: Memory,
    clock: Clock,
    events: Events,
    loop: asyncio.AbstractEventLoop,
    namespace: str = "timebound",
    lease_s: float = 2.0,
    patience_s: float = 0.1,
) -> Shared:
    """The Redis at this URL; raises `SetupError` if that cannot be read."""
    address = read_address(url)
    gateway = os.urandom(8).hex()
    return Shared(
        Place(namespace, namespace, gateway),
        OwnKey(namespace, gateway, lease_s),
        partial(Link, address, loop, patience_s=patience_s),
        near=near,
        clock=clock,
        events=events,
        loop=loop,
        shown=address.shown,
    )

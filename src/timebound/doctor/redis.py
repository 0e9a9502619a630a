"""Checks of the Redis that is to keep results: reached and greeted as a server does it, then asked about itself."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import hiredis

from timebound.clock import Clock
from timebound.config import Config
from timebound.doctor.finding import Finding, ok, problem, warning
from timebound.doctor.options import is_local
from timebound.errors import SetupError
from timebound.events import Events
from timebound.store.address import Address, read_address
from timebound.store.base import open_store
from timebound.store.line import Down
from timebound.store.link import Link

PINGS = 50
OLDEST = 6
# Policies under which claims are not taken away before results are; see docs/behaviour.md.
GOOD_POLICIES = ("noeviction", "volatile-ttl")


async def check_redis(config: Config, clock: Clock) -> list[Finding]:
    """All about the store, if it is a Redis."""
    if "://" not in config.store:
        return [ok("store", f"{config.store}: nothing to reach")]
    try:
        address = read_address(config.store)
        trouble = await _serves(config, clock)
    except SetupError as error:
        return [problem("store", str(error))]
    if trouble is not None:
        cure = "start it, or check host, port and firewall; until it is there, results are not shared"
        return [problem("store", f"{address.shown}: {trouble}", cure)]
    try:
        return [finding async for finding in _questions(address, config, clock)]
    except (Down, hiredis.HiredisError) as error:
        return [problem("store", f"{address.shown} went away while it was asked: {error}", "look at its log")]


async def _serves(config: Config, clock: Clock) -> str | None:
    """What keeps a server's own store from working there: the login, its scripts, its writes; None if nothing does."""
    loop = asyncio.get_running_loop()
    store = open_store(config, clock=clock, events=Events(), loop=loop)
    await store.start()
    trouble = store.trouble
    await store.stop()
    return None if trouble is None else trouble.removeprefix("redis: ")


async def _questions(address: Address, config: Config, clock: Clock) -> AsyncIterator[Finding]:
    link = Link(address, asyncio.get_running_loop(), patience_s=max(1.0, config.store_patience))
    await link.start()
    try:
        facts = _facts(await link.ask("INFO"))
        yield version(address.shown, facts.get("redis_version", "unknown"))
        yield distance(await _round_trips(link, clock), config.store_patience)
        yield eviction(facts)
        yield guard(address)
    except hiredis.ReplyError as error:
        cure = "allow this user INFO and PING to have version, distance and memory checked"
        yield warning("store", f"it does not tell about itself: {error}", cure)
    finally:
        await link.stop()


async def _round_trips(link: Link, clock: Clock) -> list[float]:
    trips: list[float] = []
    for _ in range(PINGS):
        start = clock.now()
        await link.ask("PING")
        trips.append(clock.now() - start)
    return sorted(trips)


def _facts(info: Any) -> dict[str, str]:
    text = info.decode() if isinstance(info, bytes) else str(info)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def version(shown: str, number: str) -> Finding:
    """Whether it is new enough."""
    with contextlib.suppress(ValueError):
        if int(number.partition(".")[0]) < OLDEST:
            return problem("store", f"{shown} is Redis {number}", f"use Redis {OLDEST} or newer")
    return ok("store", f"{shown} answers, takes the scripts and can be written to; Redis {number}")


def distance(trips_s: list[float], patience_s: float) -> Finding:
    """Whether it is near enough to be asked before each request with a key."""
    usual, worst = trips_s[len(trips_s) // 2], trips_s[-1]
    text = f"{usual * 1e3:.2f} ms away as a rule, {worst * 1e3:.1f} ms at worst of {len(trips_s)}"
    if worst > patience_s:
        cure = "bring it nearer or raise --store-patience; servers go on without it each time"
        return warning("store distance", f"{text}: more than store_patience, {patience_s * 1e3:g} ms", cure)
    return ok("store distance", text)


def eviction(facts: dict[str, str]) -> Finding:
    """What it does when its memory is full."""
    policy = facts.get("maxmemory_policy", "unknown")
    limit, used = (int(facts.get(name, "0")) for name in ("maxmemory", "used_memory"))
    room = f"maxmemory {limit / 2**20:,.0f} MiB" if limit else "no maxmemory"
    text = f"maxmemory-policy {policy}, {room}, {used / 2**20:,.0f} MiB used"
    if policy not in GOOD_POLICIES:
        cure = "`CONFIG SET maxmemory-policy volatile-ttl`: a policy that evicts claims makes servers compute twice"
        return warning("store memory", text, cure)
    if limit and used > 0.9 * limit:
        return warning("store memory", text, "raise maxmemory, or lower `keep` on the models")
    return ok("store memory", text)


def guard(address: Address) -> Finding:
    """Whether strangers could read and write the results."""
    if address.path is not None:
        mode = Path(address.path).stat().st_mode
        if mode & 0o002 and address.password is None:
            return warning("store password", "every user of this machine can use the socket", "set unixsocketperm 770")
        return ok("store password", "a Unix socket of this machine")
    if address.password is None and not is_local(address.host):
        cure = "set requirepass there and give it in the URL: redis://:password@host:6379/0"
        return warning("store password", f"{address.host} is asked without one", cure)
    if address.password is not None and address.tls is None and _is_public(address.host):
        return warning(
            "store password", "it goes through the internet in the open", "use rediss://, or a private network"
        )
    return ok("store password", "given and taken" if address.password is not None else "none, on this machine only")


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False

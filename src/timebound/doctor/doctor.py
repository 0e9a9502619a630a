"""One examination from start to end: each check in turn, each on what the server would use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timebound.clock import Clock, wall
from timebound.config import Config, resolve, settings
from timebound.doctor.certificate import check_certificate
from timebound.doctor.finding import Finding, ok, problem
from timebound.doctor.gpus import check_gpus
from timebound.doctor.machine import available_mib, check_machine
from timebound.doctor.models import check_models
from timebound.doctor.options import check_options
from timebound.doctor.redis import check_redis
from timebound.errors import SetupError
from timebound.http.listener import bind
from timebound.machine.cores import cores
from timebound.target import home_of


@dataclass(frozen=True)
class Patient:
    """What is looked at: what `timebound serve` would be given, and where."""

    target: Path | None
    flags: Mapping[str, Any]
    environment: Mapping[str, str]
    folder: Path
    timeout_s: float = 120.0


def examine(patient: Patient, clock: Clock) -> Iterator[Finding]:
    """Every finding, as soon as it is known; settings that cannot be read end it after the machine."""
    home = None if patient.target is None else home_of(patient.target)
    where = (patient.flags, patient.environment, patient.folder, home)
    try:
        config, found = resolve(*where), settings(*where)
    except SetupError as error:
        yield from check_machine(Config(), clock)
        yield problem("settings", str(error))
        return
    found_cores = cores()
    yield from check_machine(config, clock)
    yield from check_gpus(config, patient.environment)
    yield from check_options(config, found, patient.folder, found_cores)
    yield check_port(config)
    yield from check_certificate(config, wall())
    yield from asyncio.run(check_redis(config, clock))
    if patient.target is not None:
        yield from check_models(patient.target, config, found_cores, available_mib(), patient.timeout_s)


def check_port(config: Config) -> Finding:
    """Whether the server could listen where it is told to: the port is taken for a moment, exactly as it would."""
    try:
        bind(config.host, config.port, is_shared=config.reuse_port).close()
    except SetupError as error:
        return problem("port", str(error))
    except OSError as error:  # of a host name that means nothing here
        return problem("port", f"cannot listen on {config.host}: {error.strerror or error}", "check --host")
    return ok("port", f"{config.port} is free on {config.host}" if config.port else "a free one will be taken")

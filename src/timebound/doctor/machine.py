"""Checks of the machine: cores, memory, open files, processor, libraries, and how punctual its clock wakes."""

from __future__ import annotations

import os
import platform
import re
import resource
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from statistics import median

from timebound.clock import Clock
from timebound.config import Config
from timebound.doctor.finding import Finding, ok, problem, warning
from timebound.machine.cores import core_quota
from timebound.machine.processor import flags

# Below this, processes are killed sooner or later, whatever the model. A choice, not a measurement.
LEAST_MEMORY_MIB = 256
# Beside connections: sockets to workers, the store, log files, libraries.
SPARE_FILES = 64
NAPS = 40
NAP_S = 0.005
OLDEST_PYTHON = (3, 11)
_FOUND = re.compile(r"([A-Za-z0-9_.-]+)(.*)")
_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")


def check_machine(config: Config, clock: Clock) -> Iterator[Finding]:
    """Everything about the machine, one finding after the other."""
    yield cores(len(os.sched_getaffinity(0)), core_quota())
    yield memory(available_mib())
    yield files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], config.max_connections)
    yield processor(platform.machine(), flags())
    yield python(platform.python_implementation(), platform.python_version())
    yield libraries(metadata.requires("timebound") or [])
    yield clock_source()
    yield punctuality(lateness_s(clock), config.margin)


def cores(usable: int, quota: float | None) -> Finding:
    """Whether the cores that a server counts on are really there."""
    if quota is not None and quota < 0.99:
        text = f"{quota:g} of a core may be used (cgroup limit): the server will be stopped again and again, mid-batch"
        return warning("cores", text, "raise the limit to whole cores")
    if quota is not None and quota < usable - 0.01:
        return ok("cores", f"{usable} are visible, {quota:g} may be used (cgroup limit): {int(quota)} counted on")
    busy = os.getloadavg()[0]
    if busy > 0.5 * usable:
        text = f"{usable} usable, and {busy:.1f} busy on average in the last minute"
        return warning("cores", text, "stop other programs: they make answers late, and the figures below worse")
    return ok("cores", f"{usable} usable, {busy:.1f} busy")


def memory(available: float) -> Finding:
    """Whether there is room for a server at all."""
    text = f"{available:,.0f} MiB available"
    if available < LEAST_MEMORY_MIB:
        cure = f"give it {LEAST_MEMORY_MIB} MiB or more, and what the models take"
        return problem("memory", text, cure)
    return ok("memory", text)


def available_mib() -> float:
    """Memory that can be had now; less where a control group has a limit of its own."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) / 1024
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no group, or one whose limit is "max"
        return free
    return min(free, (limit - used) / 2**20)


def files(limit: int, connections: int) -> Finding:
    """Whether as many connections as are allowed can be open."""
    text = f"{limit:,} may be open, {connections:,} connections are allowed (max_connections)"
    if limit != resource.RLIM_INFINITY and limit < connections + SPARE_FILES:
        needed = connections + SPARE_FILES
        cure = f"`ulimit -n {needed}` before starting, or --max-connections {max(1, limit - SPARE_FILES)}"
        return warning("open files", f"{text}: the rest cannot be accepted", cure)
    return ok("open files", text)


def processor(architecture: str, flags: set[str]) -> Finding:
    """Whether the processor has what fast matrix code wants."""
    if architecture != "x86_64":
        return ok("processor", architecture)
    wanted = {"avx2": "AVX2", "fma": "FMA", "avx512f": "AVX-512", "avx512_vnni": "VNNI (int8)"}
    present = [name for flag, name in wanted.items() if flag in flags]
    text = f"x86_64 with {', '.join(present) or 'nothing beyond SSE'}"
    if not {"avx2", "fma"} <= flags:
        return warning("processor", text, "choose a machine type with AVX2 and FMA, which fast matrix code is made for")
    return ok("processor", text)


def python(implementation: str, version: str) -> Finding:
    """Whether this Python is one that we run on."""
    text = f"{implementation} {version}"
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_PYTHON:
        return problem("python", text, f"use {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    if implementation != "CPython":
        return warning("python", text, "use CPython, which is what the tests run on")
    return ok("python", text)


def libraries(requirements: list[str]) -> Finding:
    """Whether each library that the package asks for is there, and new enough; extras are left out."""
    wrong: list[str] = []
    shown: list[str] = []
    for requirement in requirements:
        if "extra ==" in requirement:
            continue
        match = _FOUND.match(requirement)
        assert match is not None
        name, bounds = match.groups()
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        shown.append(f"{name} {version}")
        wrong += [f"{name} is {version}, not {sign}{bound}" for sign, bound in broken_bounds(version, bounds)]
    if wrong:
        return problem("libraries", ", ".join(wrong), "`pip install --upgrade timebound` into this environment")
    return ok("libraries", ", ".join(shown))


def broken_bounds(version: str, bounds: str) -> list[tuple[str, str]]:
    """Those of the bounds, such as `>=1.0,<2`, that the version is outside of."""
    number = _numbers(version)
    return [
        (sign, bound)
        for sign, bound in _BOUND.findall(bounds)
        if (number < _numbers(bound) if sign == ">=" else number >= _numbers(bound))
    ]


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
    return tuple([*numbers, 0, 0][:3])


def clock_source() -> Finding:
    """Whether reading the time is cheap; it is read several times per request."""
    try:
        name = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    except OSError:
        return ok("clock", "its source is not told")
    if name in ("hpet", "acpi_pm", "jiffies"):
        return warning("clock", f"the source is {name}, slow to read", "boot with clocksource=tsc, or ask the provider")
    return ok("clock", f"the source is {name}")


def lateness_s(clock: Clock) -> list[float]:
    """By how much naps last too long; other programs and a virtual machine's host both show here."""
    late: list[float] = []
    nap = threading.Event()
    for _ in range(NAPS):
        start = clock.now()
        nap.wait(NAP_S)
        late.append(max(0.0, clock.now() - start - NAP_S))
    return late


def punctuality(late_s: list[float], margin_s: float) -> Finding:
    """Whether this process is woken when it asks to be, seen against the time kept free before deadlines."""
    worst, usual = max(late_s), median(late_s)
    text = f"woken {usual * 1e3:.2f} ms late as a rule, {worst * 1e3:.1f} ms at worst, in {len(late_s)} naps"
    if worst > margin_s:
        cure = "stop other programs or choose a machine with cores of its own; the server will learn a wider margin"
        return warning("wake-ups", f"{text}: more than the margin of {margin_s * 1e3:g} ms", cure)
    return ok("wake-ups", text)

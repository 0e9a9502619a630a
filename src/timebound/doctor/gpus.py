"""Checks of GPUs: the driver, which ones may be used and what is free, and what models do with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from timebound.config import Config
from timebound.doctor.finding import Finding, ok, problem, warning
from timebound.errors import SetupError
from timebound.machine.gpus import chosen, gpus
from timebound.machine.nvml import Cards, open_cards
from timebound.types import ModelInfo

_ROOT = Path("/")
_VERSION = re.compile(r"\b\d{3,}\.\d+(\.\d+)?\b")
# Less than this is taken by a context of CUDA alone, and a small network with its graphs.
LEAST_FREE_BYTES = 1_000_000_000


def check_gpus(config: Config, environment: Mapping[str, str], root: Path = _ROOT) -> Iterator[Finding]:
    """What can be seen without CUDA; nothing on a machine without GPUs, unless one is asked for."""
    driver = root / "proc/driver/nvidia/version"
    there = gpus(environment, root)
    try:
        used = chosen(config.device, there)
    except SetupError as error:
        yield problem("gpu", str(error))
        return
    if not there:
        if driver.is_file():
            cure = "give the container its GPUs (--gpus all), or see to CUDA_VISIBLE_DEVICES"
            yield warning("gpu", "the driver is loaded, and no GPU may be used", cure)
        return
    match = _VERSION.search(driver.read_text()) if driver.is_file() else None
    version = match.group() if match else "of a version that is not told"
    idle = "" if used else f", none used because of --device {config.device}"
    yield ok("gpu", f"{len(used) or len(there)} may be used, NVIDIA driver {version}{idle}")
    yield from cards(open_cards(used))


def cards(found: Cards | None) -> Iterator[Finding]:
    """Each GPU's name and free memory, as far as the driver can be asked."""
    for name, card in zip(found.names, found.read(), strict=True) if found is not None else ():
        free = card.total_bytes - card.used_bytes
        text = f"{card.name}, {free / 1e9:.1f} of {card.total_bytes / 1e9:.1f} GB free, {card.busy:.0%} busy"
        if free < LEAST_FREE_BYTES:
            yield warning(f"gpu {name}", text, "stop what else runs there (nvidia-smi lists it)")
        else:
            yield ok(f"gpu {name}", text)


def library(torch: str, facts: Mapping[str, str], free_bytes: int | None, *, has_gpu: bool) -> Iterator[Finding]:
    """What the models' networks run on: torch as it is installed, and the device that they opened."""
    if facts:
        named = ", ".join(f"{name} {value}" for name, value in facts.items() if name not in ("device", "gpu"))
        free = f", {free_bytes / 1e9:.1f} GB free" if free_bytes is not None else ""
        yield ok("device", f"{facts['device']} ({facts.get('gpu', 'a stand-in for tests')}), {named}{free}")
    elif torch.endswith("+cpu") and has_gpu:
        cure = 'install a CUDA build (pip install torch) and open networks with device="cuda"'
        yield warning("device", f"torch {torch} is built for processors alone, and there is a GPU", cure)


def captured(info: ModelInfo, why_no_hands: str = "") -> Iterator[Finding]:
    """What a model's networks do on a device, and whether other processes prepare for it; nothing on processors."""
    if info.device == "cpu":
        return
    check, sizes, times = f"{info.name} device", info.batch_sizes, ""
    if sizes and info.step_s:
        first, last = (sum(member[place] for member in info.step_s) for place in (0, -1))
        times = f"; {first * 1e3:.2f} ms at {sizes[0]}, {last * 1e3:.2f} ms at {sizes[-1]}"
    yield ok(check, f"{info.device}: {info.captured or 'runs eagerly, nothing is captured'}{times}")
    for note in info.notes:
        yield warning(check, note, "see docs/gpu.md")
    if why_no_hands:
        cure = "until then the device waits for it; see docs/models.md"
        yield warning(f"{info.name} prepare", f"runs in the worker itself: {why_no_hands}", cure)

"""What `timebound --version` says: this release, the Python that runs it, and which extras are found."""

from __future__ import annotations

import platform
import re
from importlib import metadata

from timebound import __version__
from timebound.doctor.machine import broken_bounds

_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,.-]+\])?([^;\[]*); extra == ['\"]([\w-]+)['\"]")
_OUR_OWN = {"dev"}  # for those who work on Timebound


def installed() -> str:
    """Version, Python and extras, a line each."""
    found = {extra: all(map(_is_there, needs)) for extra, needs in _extras(_requirements()).items()}
    there = ", ".join(extra for extra, is_there in found.items() if is_there) or "none"
    absent = ", ".join(extra for extra, is_there in found.items() if not is_there)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{platform.system()} {platform.machine()}"
    lines = [f"timebound {__version__}", f"python: {python}, {machine}"]
    if found:
        lines.append(f"extras: {there}" + (f" (not installed: {absent})" if absent else ""))
    return "\n".join(lines) + "\n"


def _requirements() -> list[str]:
    try:
        return metadata.requires("timebound") or []
    except metadata.PackageNotFoundError:  # run from a folder: nobody wrote down what the extras are
        return []


def _extras(requirements: list[str]) -> dict[str, list[tuple[str, str]]]:
    """By extra, the packages it asks for, with their bounds."""
    extras: dict[str, list[tuple[str, str]]] = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match and match[3] not in _OUR_OWN:
            extras.setdefault(match[3], []).append((match[1], match[2]))
    return dict(sorted(extras.items()))


def _is_there(need: tuple[str, str]) -> bool:
    name, bounds = need
    try:
        return not broken_bounds(metadata.version(name), bounds)
    except metadata.PackageNotFoundError:
        return False

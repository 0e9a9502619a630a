"""The folder that this process works in, by its name: a link in it may lead elsewhere one day, and is followed then."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def work_folder() -> Path:
    """With the links in its path, as a shell tells it (PWD); the system itself knows only where they led."""
    told = Path(os.environ.get("PWD", ""))
    with suppress(OSError):
        if told.is_absolute() and told.samefile("."):
            return told
    return Path.cwd()


def full_path(path: Path) -> Path:
    """By which this is found from any folder, with the links in it."""
    return path.resolve() if ".." in path.parts else work_folder() / path


def enter(folder: Path) -> None:
    """Go to where this name leads now; stay if it leads nowhere."""
    with suppress(OSError):
        os.chdir(folder)

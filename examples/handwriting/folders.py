"""Folders named on the command line: one that lacks a file is refused before minutes of work."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def folder_with(*names: str) -> Callable[[str], Path]:
    """For argparse's `type`: a folder that has these files."""

    def folder(text: str) -> Path:
        for name in names:
            if not (Path(text) / name).is_file():
                raise argparse.ArgumentTypeError(f"{text} has no {name}; README.md says where it comes from")
        return Path(text)

    return folder

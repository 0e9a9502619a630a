"""What to do in a test whose outside client cannot be had."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

REQUIRED = "OUTSIDE_CLIENTS"
"""Set it to `required`, as scripts/test does in CI, and a client that is missing fails its tests."""


def absent(reason: str) -> NoReturn:
    """Skip the test, or fail it where all clients are required."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{reason}; {REQUIRED}=required")
    pytest.skip(reason)

"""Loads by name, from `scenarios.toml`: a meaning for people, and what each sets of a `Plan`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCENARIOS: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())

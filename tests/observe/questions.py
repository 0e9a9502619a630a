"""The files for Prometheus and Grafana as `timebound pack` writes them, and what they ask."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from timebound.pack.template import FOLDER, fill


def shipped(name: str, port: int = 8000) -> str:
    """One of the files, for an app called shop."""
    return fill((FOLDER / "prometheus" / name).read_text(), {"name": "shop", "written": "", "port": port})


def dashboard() -> dict[str, Any]:
    """What Grafana imports."""
    found: dict[str, Any] = json.loads(shipped("dashboard.json"))
    return found


def expressions_of_alerts() -> list[str]:
    """What the alert rules ask."""
    groups = msgspec.yaml.decode(shipped("alerts.yml").encode())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]

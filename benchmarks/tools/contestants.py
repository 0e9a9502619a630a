"""How the servers under test are started."""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tools.bare import CORES

ROOT = Path(__file__).resolve().parents[2]


def timebound(app: str, serve_args: Sequence[str]) -> list[str]:
    """The command for benchmarks/serving/apps/<app>_app.py; the port is still to be added."""
    program = Path(sys.executable).parent / "timebound"
    return [str(program), "serve", str(ROOT / f"benchmarks/serving/apps/{app}_app.py"), *serve_args]


def fastapi(workload: str) -> list[str]:
    """The command for the peer: one uvicorn process per core; the port is still to be added."""
    factory = ["--factory", f"benchmarks.serving.apps.fastapi_app:create_{workload}", "--app-dir", str(ROOT)]
    engine = ["--workers", str(CORES), "--loop", "uvloop", "--http", "httptools"]
    # No access log: the peer at its best.
    return [sys.executable, "-m", "uvicorn", *factory, *engine, "--log-level", "warning", "--no-access-log"]

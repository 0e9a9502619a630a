"""The client needs little of what the server needs."""

from __future__ import annotations

import subprocess
import sys

SHOW = """
import sys
before = set(sys.modules)
{statement}
foreign = {{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
foreign.discard("typing_extensions")  # msgspec takes it if it is there
print(*sorted(name for name in foreign if "cython" not in name))  # names of httptools' own machinery
print("asyncio" in sys.modules, "ssl" in sys.modules)
print(*sorted({{name.split(".")[1] for name in sys.modules if name.startswith("timebound.")}}))
"""


def shown(statement: str) -> list[str]:
    """Libraries that were imported; whether asyncio and ssl were; rooms of ours that were."""
    command = [sys.executable, "-c", SHOW.format(statement=statement)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def test_a_client_is_there_without_the_servers_libraries_and_rooms() -> None:
    libraries, others, rooms = shown("from timebound import Client; Client('http://127.0.0.1:8000')")
    assert libraries.split() == ["httptools", "msgspec", "timebound"]
    assert others == "False False"
    assert rooms.split() == ["client", "clock", "errors", "types", "version"]


def test_an_async_one_needs_asyncio_besides() -> None:
    libraries, _, rooms = shown("from timebound import AsyncClient; AsyncClient('http://127.0.0.1:8000')")
    assert libraries.split() == ["httptools", "msgspec", "timebound"]
    assert rooms.split() == ["client", "clock", "errors", "types", "version"]

"""A front: a Unix socket on which a line asks and a line answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timebound.config import Config
from timebound.errors import RequestError
from timebound.gateway import Gateway


class LineFront:
    """`MODEL JSON` in, JSON or an error's code out."""

    path = Path()

    def __init__(self, gateway: Gateway, config: Config, **_: Any) -> None:
        self._gateway = gateway
        self.address = f"unix:{self.path}"
        self._server: asyncio.Server | None = None

    def bind(self) -> None:
        """The socket is made when it is opened."""

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._talk, self.path)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            model, _, body = line.strip().partition(b" ")
            try:
                said = (await self._gateway.ask(model.decode(), body)).body
            except RequestError as error:
                said = error.code.encode()
            writer.write(said + b"\n")
        writer.close()

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self, patience_s: float) -> int:
        """Nobody is left, and nobody was cut off."""
        return 0

    def read_again(self) -> None:
        """Nothing to read."""

    def gauges(self) -> dict[str, tuple[str, Callable[[], float]]]:
        return {}

"""The Open Inference Protocol over gRPC: a way in of its own, which nobody loads who does not ask for it."""

from __future__ import annotations

from typing import Any

from timebound.config import Config
from timebound.errors import MissingExtra


def rpc_front(gateway: Any, config: Config, **wiring: Any) -> Any:
    """The front, if there is to be one; raises `SetupError` without gRPC."""
    if config.grpc_port is None:
        return None
    try:
        import grpc  # noqa: F401 - only who asks for it pays for it
        from google.protobuf import message  # noqa: F401
    except ImportError:
        raise MissingExtra("gRPC, which --grpc-port needs,", "grpc") from None
    from timebound.rpc.front import RpcFront

    return RpcFront(gateway, config, **wiring)

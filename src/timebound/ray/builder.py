"""What `serve run` and `serve deploy` build: one deployment whose replicas each hold a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timebound.config import of_options
from timebound.errors import SetupError

RAYS_OWN = {
    "host": "http_options",
    "port": "http_options",
    "grpc_port": "gRPC at a server of its own, started by timebound serve",
    "reuse_port": "http_options",
    "keep_alive": "http_options",
    "tls_cert": "a proxy in front of Ray",
    "tls_key": "a proxy in front of Ray",
    "proxy_protocol": "a proxy in front of Ray",
    "drain_delay": "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S",
}
"""Options of `timebound serve` about what Ray does here, and where to say it instead."""

SERVE: dict[str, Any] = {
    "name": "Timebound",
    # Ray must not hold requests back: a request that waits there has its deadline running and is in nobody's schedule.
    "max_ongoing_requests": 10_000,
    # Ray keeps a replica that leaves reachable for 30 s, and after that it answers what it has accepted.
    "graceful_shutdown_timeout_s": 60.0,
    # The gateway restarts its workers by itself: only one that cannot is to be replaced, and then soon.
    "health_check_period_s": 5.0,
    # A line for every request takes time on the way of each; the gateway has an access log of its own (`access_log`).
    "logging_config": {"enable_access_log": False},
}
"""What a deployment says to Serve unless the config file says something else."""


def app(args: Mapping[str, Any]) -> Any:
    """A Serve application that serves `target`; every other argument is an option of `timebound serve`.

    Raises `SetupError`. How many replicas there are, with how many cores each, is said in Serve's own config.
    """
    target, options = read(args)
    try:
        from ray import serve
    except ImportError:
        raise SetupError("Ray Serve is not installed; write: pip install 'timebound[ray]'") from None
    from timebound.ray.replica import Replica  # needs Ray at its top

    return serve.deployment(**SERVE)(serve.ingress()(Replica)).bind(target, options)


def read(args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The target and the options, checked before anything is started; raises `SetupError`."""
    options = dict(args)
    target = options.pop("target", None)
    if not isinstance(target, str) or not target:
        raise SetupError("say what to serve: target=app.py, or args: {target: app.py} in the config file")
    for name in options:
        if name in RAYS_OWN:
            raise SetupError(f"{name} has no effect on Ray, which owns the port; see {RAYS_OWN[name]}")
    of_options(options)
    return target, options

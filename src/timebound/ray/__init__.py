"""Timebound on Ray Serve: `serve run timebound.ray:app target=app.py`. Needs `pip install timebound[ray]`.

Ray starts the replicas, finds them machines, restarts them and brings them requests. Inside a replica is a whole
gateway with its workers, as `timebound serve` has one.
"""

from timebound.ray.builder import app
from timebound.ray.policy import policy

__all__ = ["app", "policy"]

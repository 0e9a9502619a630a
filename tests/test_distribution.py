"""What goes to the package index: built, checked as the index does, whole, and able to run."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from timebound import __version__

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "timebound"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive of this checkout, and the wheel that is built from what is in that archive."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    unpacked = folder / archive.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    return archive, wheel


def test_the_version_is_said_in_one_place(built: tuple[Path, Path]) -> None:
    assert [file.name for file in built] == [
        f"timebound-{__version__}.tar.gz",
        f"timebound-{__version__}-py3-none-any.whl",
    ]
    assert "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_package_index_would_take_them(built: tuple[Path, Path]) -> None:
    assert run(sys.executable, "-m", "twine", "check", "--strict", *built, cwd=ROOT).count("PASSED") == 2


def test_what_the_package_index_shows_is_the_readme_without_links_that_lead_nowhere_there(
    built: tuple[Path, Path],
) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        about = email.message_from_bytes(wheel.read(name))
    payload = about.get_payload(decode=True)
    assert isinstance(payload, bytes)
    shown = payload.decode()
    readme = (ROOT / "README.md").read_text()
    assert about["Description-Content-Type"] == "text/markdown"
    assert (len(shown.splitlines()), shown.splitlines()[0]) == (len(readme.splitlines()), readme.splitlines()[0])
    assert "](docs/quickstart.md)" in readme
    assert [link for link in re.findall(r"\]\(([^)]*)\)", shown) if not link.startswith("https://")] == []
    assert "| quickstart, recipes, testing |" in shown


def test_the_source_archive_has_what_the_package_is_made_of_and_no_more(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as packed:
        names = {name.partition("/")[2].partition("/")[0] for name in packed.getnames()}
    assert names == {
        "src",
        "scripts",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    tracked = run("git", "ls-files", "src/timebound", cwd=ROOT).splitlines()
    with zipfile.ZipFile(built[1]) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name.removeprefix("src/") for name in tracked} <= inside
    assert all(name.startswith("timebound/") and "test" not in Path(name).parts for name in inside)
    for part in ("ui/index.html", "demo/models", "scaffold/templates", "pack/templates", "py.typed"):
        assert any(name.startswith(f"timebound/{part}") for name in inside), part


def test_the_wheel_runs_where_it_is_put(built: tuple[Path, Path], tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path, built[1], cwd=tmp_path)
    shown = run(sys.executable, "-m", "timebound", "--version", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert shown.startswith(f"timebound {__version__}\n")
    where = "import timebound; print(timebound.__file__)"
    assert run(sys.executable, "-c", where, cwd=tmp_path, PYTHONPATH=str(tmp_path)).startswith(str(tmp_path))

"""Where the Timebound of an image comes from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.pack.small import wheel

from timebound.errors import SetupError
from timebound.pack import origin
from timebound.pack.origin import find_origin
from timebound.version import VERSION


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str | None) -> None:
    """Have Timebound be installed in `folder`, from the package index or from `url`."""
    info = folder / f"timebound-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: timebound\nVersion: {VERSION}\n")
    if url is not None:
        (info / "direct_url.json").write_text(json.dumps({"url": url, "archive_info": {}}))
    monkeypatch.setattr(origin, "_PACKAGE", folder / "timebound")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


def test_a_wheel_that_is_given_is_taken(tmp_path: Path) -> None:
    file = wheel(tmp_path)
    found = find_origin(file)
    assert found.content == file.read_bytes()
    assert found.requirement("[torch]") == f"./wheels/{file.name}[torch]"


def test_what_came_from_the_package_index_comes_from_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, tmp_path, None)
    found = find_origin(None)
    assert (found.wheel, found.requirement("")) == ("", f"timebound=={VERSION}")
    assert "from the package index" in found.said


def test_what_was_installed_from_a_wheel_takes_that_wheel_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b").mkdir()
    file = wheel(tmp_path / "a b")
    installed(monkeypatch, tmp_path, file.as_uri())
    found = find_origin(None)
    assert found.wheel == file.name
    assert "not from the package index" in found.said


def test_what_came_from_elsewhere_is_asked_for_as_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, tmp_path, "https://example.org/timebound.git")
    with pytest.raises(SetupError, match=r"came from https://example.org/timebound.git.*--wheel FILE"):
        find_origin(None)


def test_sources_that_cannot_be_built_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "timebound"\n[build-system]\nrequires = 7\n')
    monkeypatch.setattr(origin, "_PACKAGE", tmp_path / "src" / "timebound")
    with pytest.raises(SetupError, match=r"runs from its sources in .*no wheel could be made .*--wheel FILE"):
        find_origin(None)


@pytest.mark.parametrize("name", ["timebound-1.whl", "other-1-py3-none-any.whl", "nothing.whl"])
def test_a_file_that_is_no_wheel_of_timebound_is_refused(tmp_path: Path, name: str) -> None:
    if name != "nothing.whl":
        (tmp_path / name).write_text("no archive")
    with pytest.raises(SetupError, match=r"there is no wheel|is no wheel of Timebound"):
        find_origin(tmp_path / name)

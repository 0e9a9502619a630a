"""The docs tell the truth where a machine can check it: files, options, codes, versions, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.write_options import page

import timebound
from timebound.http.problems import STATUSES

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/*.md")),
]


def test_the_options_page_is_what_the_options_make_of_it() -> None:
    assert (ROOT / "docs" / "options.md").read_text() == page(), "run scripts/write_options.py"


def test_every_file_the_tour_names_is_there() -> None:
    named = re.findall(r"`([\w/]+\.(?:py|md))`", (ROOT / "docs" / "tour.md").read_text())
    assert len(named) > 15
    places = [ROOT / "src" / "timebound", ROOT]
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert missing == []


def test_every_error_code_is_in_the_behaviour_page_under_its_status() -> None:
    behaviour = (ROOT / "docs" / "behaviour.md").read_text()
    rows = [line for line in behaviour.splitlines() if re.match(r"\| [0-9, ]+\|", line)]
    told = {code: row for row in rows for code in re.findall(r"`(\w+)`", row)}
    for code, (status, _) in STATUSES.items():
        assert str(status) in told.get(code, ""), f"{code} ({status})"


def test_every_part_of_the_behaviour_page_names_tests() -> None:
    for part in re.split(r"^## ", (ROOT / "docs" / "behaviour.md").read_text(), flags=re.M)[1:]:
        assert re.search(r"`tests/[\w/]+\.py", part), f"no test is named under {part.splitlines()[0]}"


@pytest.mark.parametrize("name", ["behaviour.md", "security.md"])
def test_every_test_that_a_promise_names_is_there(name: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / name).read_text())
    assert len(named) > 10
    for file, test in named:
        assert (ROOT / file).is_file(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


@pytest.mark.parametrize("page_file", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_links_between_pages_lead_somewhere(page_file: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page_file.read_text())
    for link in links:
        if not link.startswith("http"):
            assert (page_file.parent / link).exists(), link


def test_version_and_changelog_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{timebound.__version__}"' in project
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = re.findall(r"^## (\S+)", changes, re.M)[0]
    assert newest in ("Unreleased", timebound.__version__)

"""The docs tell the truth where a machine can check it: files, options, codes, versions, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.write_options import page

import timebound
from timebound.http.problems import STATUSES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


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


def test_every_promise_names_tests_that_are_there() -> None:
    behaviour = (ROOT / "docs" / "behaviour.md").read_text()
    sections = re.split(r"^## ", behaviour, flags=re.M)[1:]
    for section in sections:
        assert re.search(r"`tests/[\w/]+\.py", section), f"no test is named under {section.splitlines()[0]}"
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", behaviour)
    assert len(named) > 50
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert f"def {name}(" in (ROOT / file).read_text() or not name, f"{file}::{name}"


@pytest.mark.parametrize("page_file", PAGES, ids=lambda path: path.name)
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

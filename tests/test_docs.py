"""The docs tell the truth where a machine can check it: files, options, codes, versions, links."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from scripts.write_options import page

import timebound
from timebound.http.causes import error_table
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


def test_the_tour_names_every_file_that_a_request_may_meet() -> None:
    tour, source = (ROOT / "docs" / "tour.md").read_text(), ROOT / "src" / "timebound"
    rooms = ["admission", "devices", "http", "reading", "requests", "rpc", "scheduler", "store", "tensors", "workers"]
    files = [file.relative_to(source).as_posix() for room in rooms for file in (source / room).rglob("*.py")]
    assert len(files) > 150
    assert [file for file in files if not file.endswith("__init__.py") and f"`{file}`" not in tour] == []


def test_every_error_code_is_in_the_behaviour_page_under_its_status() -> None:
    behaviour = (ROOT / "docs" / "behaviour.md").read_text()
    rows = [line for line in behaviour.splitlines() if re.match(r"\| [0-9, ]+\|", line)]
    told = {code: row for row in rows for code in re.findall(r"`(\w+)`", row)}
    for code, (status, _) in STATUSES.items():
        assert str(status) in told.get(code, ""), f"{code} ({status})"


def test_the_page_of_errors_has_the_table_of_the_api_document() -> None:
    assert error_table() in (ROOT / "docs" / "errors.md").read_text(), "put error_table() there, below All errors"


def test_every_part_of_the_behaviour_page_has_promises_with_tests() -> None:
    parts = re.findall(r"^## (.+)", (ROOT / "docs" / "behaviour.md").read_text(), re.M)
    rows = [line for line in (ROOT / "docs" / "promises.md").read_text().splitlines() if line.startswith("| ")]
    assert len(parts) > 10
    for part in parts:
        link = f"(behaviour.md#{_anchor(part)})"
        assert any(link in row and re.search(r"`tests/[\w/]+\.py", row) for row in rows), f"no test holds {part}"


def test_every_promise_names_a_test() -> None:
    for part in re.split(r"^## ", (ROOT / "docs" / "promises.md").read_text(), flags=re.M)[1:]:
        rows = [line for line in part.splitlines() if line.startswith("| ")][1:]
        assert rows, part.splitlines()[0]
        for row in rows:
            assert re.search(r"`tests/[\w/]+\.py", row), row


@pytest.mark.parametrize("name", ["promises.md", "security.md"])
def test_every_test_that_a_promise_names_is_there(name: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / name).read_text())
    assert len(named) > 10
    for file, test in named:
        assert (ROOT / file).is_file(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


@pytest.mark.parametrize("page_file", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_links_between_pages_lead_somewhere(page_file: Path) -> None:
    for link, _, anchor in (found.partition("#") for found in re.findall(r"\]\(([^)]+)\)", page_file.read_text())):
        if not link.startswith("http"):
            there = page_file.parent / link if link else page_file
            assert there.exists(), link
            if anchor:
                headings = re.findall(r"^#+ (.+)", there.read_text(), re.M)
                assert anchor in [_anchor(heading) for heading in headings], f"{link}#{anchor}"


def _anchor(heading: str) -> str:
    """What a page's own links to this heading are made of."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_readme_links_every_page_of_the_docs() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in readme] == []


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_has_words_for_those_who_do_not_see_it_and_colours_for_the_dark(picture: Path) -> None:
    words = picture.read_text()
    assert "<title " in words
    assert "<desc " in words
    assert "prefers-color-scheme: dark" in words


def test_version_and_changelog_agree() -> None:
    assert metadata.version("timebound") == timebound.__version__, "install it again: pip install --no-deps -e ."
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = re.findall(r"^## (\S+)", changes, re.M)[0]
    assert newest in ("Unreleased", timebound.__version__)

"""What the docs show is what happens: every code block of every page is run, or says why it is not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.live.pages import ROOT, Session, agrees, blocks, files_of

pytestmark = pytest.mark.live

PICTURE = next((ROOT / "examples" / "insects" / "samples").glob("*.jpg"))
DOCS = sorted((ROOT / "docs").glob("*.md"))
ELSEWHERE = {
    "client.md": "tests/live/test_client_page.py",
}
"""Pages whose blocks need more than one session, and the test that runs them all."""
EXAMPLES = [ROOT / "examples" / name / "README.md" for name in ("correction", "insects")]
UNFOLLOWED = [ROOT / "examples" / name / "README.md" for name in ("sentiment", "stack")]
FOLLOWED = [page for page in DOCS if page.name not in ELSEWHERE and any(each.kind for each in blocks(page))]


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(PICTURE, tmp_path / "ant.jpg")
    with Session(tmp_path, files_of(ROOT / "README.md", *DOCS)) as session:
        run = list(session.follow(page))
    shown = [each for each in blocks(page) if each.kind == "console" and each.why_not is None]
    assert len(run) >= len(shown)


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.parent.name)
def test_what_the_page_of_an_example_shows_is_what_happens(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with Session(tmp_path, {}) as session:
        run = list(session.follow(page))
    assert any(command.startswith("curl") for command in run)


@pytest.mark.parametrize("page", UNFOLLOWED, ids=lambda page: page.parent.name)
def test_an_example_whose_blocks_are_all_run_elsewhere_says_why(page: Path) -> None:
    shown = [each for each in blocks(page) if each.kind]
    assert shown
    assert [each.text for each in shown if each.why_not is None] == []


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_the_other_pages_have_a_test_of_their_own(page: str, test: str) -> None:
    assert page in (ROOT / test).read_text()


def test_a_block_that_is_not_run_names_only_tests_that_are_there() -> None:
    for page in [*DOCS, *EXAMPLES, *UNFOLLOWED]:
        for why in filter(None, (each.why_not for each in blocks(page))):
            for name in re.findall(r"\btests?[/_][\w/]+(?:\.py)?", why):
                places = (ROOT / name, ROOT / "tests" / "live" / name)
                assert any(place.exists() for place in places), f"{page.name}: {name}"


@pytest.mark.parametrize(
    ("shown", "said", "is_alike"),
    [
        ('{"a": 1, "id": "..."}', '{"id":"x","a":1}', True),
        ('{"a": 1}', '{"a":2}', False),
        ("made ... files", "made 3 files", True),
        ("made ... files", "made nothing", False),
    ],
)
def test_what_is_shown_is_compared(shown: str, said: str, is_alike: bool) -> None:
    assert agrees(shown, said) is is_alike


def test_a_page_that_shows_something_else_than_what_happens_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n# three.py\nprint(3)\n```\n\n```console\n$ python three.py\n4\n```\n")
    with Session(tmp_path, {}) as session, pytest.raises(AssertionError, match="shown: 4"):
        list(session.follow(page))

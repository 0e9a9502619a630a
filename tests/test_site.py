"""The docs as a site: built strictly, whole, searched without internet."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from scripts import build_site
from scripts.build_site import Broken, build, check_navigation, pages
from tests.live.browser import Browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    build(folder)
    return folder


def test_every_page_is_there_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    for name in pages().values():
        page = (site / name).with_suffix(".html")
        if name == "benchmarks/README.md":
            page = site / "benchmarks" / "index.html"
        text = page.read_text()
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//[^"]+|<link[^>]+href="https?:[^"]+', text)
    assert not list(site.rglob("*.md"))


def test_a_link_between_pages_leads_to_the_page_of_the_site(site: Path) -> None:
    assert re.search(r'href="(?:\./)?quickstart\.html"', (site / "index.html").read_text())
    assert re.search(r'href="\.\./deploy\.html|href="\.\./benchmarks\.html', (site / "examples/stack.html").read_text())


@pytest.mark.live
def test_the_pages_are_searched_without_internet_also_when_opened_from_a_disk(site: Path) -> None:
    with Browser() as browser:
        browser.open(f"file://{site}/index.html")
        browser.click(".md-search__button")
        inside = "[...document.querySelectorAll('*')].find(each => each.shadowRoot)?.shadowRoot"
        browser.wait_for(f"{inside}?.activeElement?.tagName === 'INPUT'")
        browser.send("Input.insertText", text="key_reused")
        found = f"[...({inside}?.querySelectorAll('a[href]') ?? [])].map(each => each.href).join(' ')"
        assert "errors.html" in browser.wait_for(f"{found}.includes('errors.html') && {found}")
        assert browser.complaints == []


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the same pages, which say nothing yet, to break something in."""
    for page in pages():
        place = tmp_path / page.relative_to(build_site.ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("# A page\n")
    (tmp_path / "scripts").mkdir()
    for name in ("zensical.toml", "scripts/site_search.js"):
        shutil.copyfile(build_site.ROOT / name, tmp_path / name)
    monkeypatch.setattr(build_site, "ROOT", tmp_path)
    return tmp_path


def test_a_link_to_a_page_that_is_not_there_ends_the_build(copied: Path) -> None:
    (copied / "docs" / "doctor.md").write_text("[gone](gone.md)")
    with pytest.raises(Broken, match=r"docs/doctor.md links gone.md, which is not there"):
        build(copied / "site")


def test_a_link_to_a_heading_that_is_not_there_ends_the_build(copied: Path) -> None:
    (copied / "docs" / "doctor.md").write_text("[gone](gpu.md#gone)")
    with pytest.raises(Broken, match=r"doctor.md:1"):
        build(copied / "site")


def test_a_page_that_the_navigation_does_not_have_ends_the_build(copied: Path) -> None:
    (copied / "docs" / "new.md").write_text("# New")
    with pytest.raises(Broken, match=r"differ in new.md"):
        check_navigation()

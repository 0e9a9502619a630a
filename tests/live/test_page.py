"""The pages in a real browser: what a person sees after the page's scripts have run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.serving import Serving

pytestmark = pytest.mark.live

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1100,1000",
    "--virtual-time-budget=8000",
]


@pytest.fixture(scope="module")
def demo() -> Iterator[Serving]:
    with Serving("demo") as serving:
        yield serving


def browse(url: str, *flags: str, profile: Path) -> str:
    """The page as the browser has it in the end."""
    browser = shutil.which("chromium")
    assert browser, "chromium is missing; ./scripts/test installs it"
    command = [browser, *_FLAGS, f"--user-data-dir={profile}", *flags, url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_front_page_says_what_runs_and_how_to_call_it(demo: Serving, tmp_path: Path) -> None:
    shown = browse(demo.url + "/", "--dump-dom", profile=tmp_path)
    assert "digits" in shown
    assert "curl" in shown
    assert "/predictions/digits" in shown
    assert "ready" in shown


def test_the_docs_page_shows_the_api_without_the_internet(demo: Serving, tmp_path: Path) -> None:
    shown = browse(demo.url + "/docs", "--dump-dom", profile=tmp_path)
    assert "swagger-ui" in shown
    assert "/predictions/digits" in shown
    assert "Failed to load" not in shown


def test_a_screenshot_of_the_front_page_is_kept(demo: Serving, tmp_path: Path) -> None:
    picture = Path(__file__).parents[2] / "out" / "page.png"
    picture.parent.mkdir(exist_ok=True)
    browse(demo.url + "/", f"--screenshot={picture}", profile=tmp_path)
    assert picture.stat().st_size > 20_000

"""What the tests of pages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.live.browser import Browser


@pytest.fixture(scope="module")
def one_browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """The browser; whatever a test does, pages log no error and break no policy of their own."""
    one_browser.complaints.clear()
    yield one_browser
    assert one_browser.complaints == []

"""What axe-core says of pages whose parts are opened: tables, forms, one request, errors, the door, and the docs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.browser import Browser
from tests.live.serving import MODELS
from tests.live.test_live_page import AXE, LOOKS, Watched, open_history, visit

pytestmark = pytest.mark.live

NOBODY = "window.fetch = () => Promise.reject(new Error('nobody there'));"
SWAGGERS_OWN = {"color-contrast", "heading-order", "nested-interactive", "region"}
"""What Swagger UI, vendored unchanged, does by itself; docs/watching.md says so."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    kept = ("--history", tmp_path_factory.mktemp("history"))
    with Watched(MODELS / "watched.py", "--workers", "1", "--slots", "1", *kept) as serving:
        serving.fill()
        yield serving


def violations(browser: Browser, without: str = "") -> list[Any]:
    """What axe-core finds, but for what is in one element; each with the elements that are meant."""
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "it fits the screen"
    browser.run(AXE.read_text() + "; undefined")
    where = f"{{ exclude: [[{without!r}]] }}" if without else "document"
    told = "(all) => all.violations.map((one) => [one.id, one.nodes.map((n) => n.html.slice(0, 200))])"
    found: list[Any] = browser.run(f"axe.run({where}).then({told})")
    return found


@pytest.mark.parametrize("name", LOOKS)
def test_opened_tables_and_one_requests_time_are_within_reach(serving: Watched, browser: Browser, name: str) -> None:
    serving.http.post("/votes", json={"x": 1.0}, headers={"X-Request-Id": "looked-at"}).raise_for_status()
    visit(browser, serving, **LOOKS[name])
    browser.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    browser.fill("#request-id", "looked-at")
    browser.click("#decisions form button")
    browser.find(".bar [data-part=finish]")
    browser.wait_for("document.querySelectorAll('.chart tbody tr').length > 11")
    browser.find("#timeline tbody tr")
    assert violations(browser) == []


@pytest.mark.parametrize("name", LOOKS)
def test_the_door_is_within_reach_also_when_it_says_no(serving: Watched, browser: Browser, name: str) -> None:
    browser.open(f"{serving.url}/live", **LOOKS[name])
    browser.run("sessionStorage.clear()")
    browser.open(f"{serving.url}/live", **LOOKS[name])
    browser.find(".door")
    assert violations(browser) == []
    browser.complaints.clear()  # the console's line for each 403


@pytest.mark.parametrize("name", LOOKS)
def test_what_pages_say_of_a_server_that_is_gone_is_within_reach(serving: Watched, browser: Browser, name: str) -> None:
    with browser.before_pages(NOBODY):
        for path in ("/", "/live"):
            browser.open(f"{serving.url}{path}", **LOOKS[name])
            browser.wait_for("document.querySelector('#notice').innerText.includes('does not answer')")
            assert violations(browser) == [], path


@pytest.mark.parametrize("name", LOOKS)
def test_what_the_first_page_says_of_wrong_input_is_within_reach(serving: Watched, browser: Browser, name: str) -> None:
    browser.open(f"{serving.url}/#votes", **LOOKS[name])
    browser.fill(".card:not([hidden]) [data-name=x] input", "none")
    browser.click(".card:not([hidden]) button.main")
    browser.find(".card:not([hidden]) .problem, .card:not([hidden]) [aria-invalid]")
    assert violations(browser) == []
    browser.complaints.clear()  # the console's line for the 422


@pytest.mark.parametrize("name", LOOKS)
def test_a_request_opened_in_the_history_is_within_reach(serving: Watched, browser: Browser, name: str) -> None:
    open_history(browser, serving, **LOOKS[name])
    browser.click("#page table tbody button")
    browser.wait_for("document.querySelector('#one').innerText.length > 40")
    assert violations(browser) == []


@pytest.mark.parametrize("name", LOOKS)
def test_the_docs_have_no_faults_but_those_of_swagger_ui_itself(serving: Watched, browser: Browser, name: str) -> None:
    browser.open(f"{serving.url}/docs", **LOOKS[name])
    browser.find(".opblock")
    browser.find(".renderedMarkdown td")
    assert browser.run("[...document.querySelectorAll('.opblock-tag small')].every((one) => one.offsetHeight < 200)")
    assert violations(browser, without=".swagger-ui") == []
    found = violations(browser)
    assert {rule for rule, _ in found} <= SWAGGERS_OWN, found

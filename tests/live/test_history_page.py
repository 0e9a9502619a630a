"""The history in a real browser: yesterday's pictures, what counts lead to, and further pages."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.browser import Browser
from tests.live.serving import MODELS, Serving, eventually
from tests.live.test_live_page import AXE, OUT
from tests.models.greys import grey

from timebound.observe.ledger import files

pytestmark = pytest.mark.live

DAY_S = 86_400
GREYS = (10, 120, 140, 250)
"""How light the pictures are: the two in the middle are those that the model is least sure of."""


class Yesterdays(Serving):
    """A server that was asked yesterday."""

    kept: Path

    def outcomes(self, query: str = "") -> Any:
        return self.operator.get(f"/v1/history{query}").json()["outcomes"]

    def address(self) -> str:
        """The page's address with a pass."""
        return f"{self.url}/history#pass={self.operator.post('/v1/live/pass').json()['pass']}"


def a_day_earlier(folder: Path) -> None:
    """Have everything in the history be of yesterday's noon, by the clock of this machine, and the file too."""
    today = time.localtime()
    noon = time.mktime((today.tm_year, today.tm_mon, today.tm_mday - 1, 12, 0, 0, 0, 0, -1))
    for file in files(folder):
        connection = sqlite3.connect(file, isolation_level=None)
        connection.execute("UPDATE outcomes SET at = ? + rowid", [noon])
        connection.close()
        shutil.move(file, folder / time.strftime("%Y%m%dT%H0000-0001.sqlite", time.gmtime(noon)))


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yesterdays]:
    folder = tmp_path_factory.mktemp("kept")
    arguments = (MODELS / "greys.py", "--workers", "1", "--history", folder)
    with Yesterdays(*arguments) as before:
        for light in GREYS:
            before.http.post("/predictions/light", content=grey(light)).raise_for_status()
            body = {"picture": b64encode(grey(light)).decode()}
            before.http.post("/predictions/light64", json=body).raise_for_status()
        eventually(lambda: len(before.outcomes()) == 8, "all are written")
    a_day_earlier(folder)
    with Yesterdays(*arguments) as serving:
        for _ in range(130):
            serving.http.post("/predictions/light", content=grey(255)).raise_for_status()
        eventually(lambda: len(serving.outcomes("?most=500")) == 138, "all are written")
        yield serving


def choose(browser: Browser, **given: str) -> None:
    """Fill in the filters, and find."""
    for name, value in given.items():
        browser.run(f"document.querySelector('#{name}').value = {json.dumps(value)}")
    browser.run("document.documentElement.dataset.state = 'asked'")
    browser.click("form.filter button[type=submit]")
    browser.wait_for("document.documentElement.dataset.state === 'shown'")


def visit(browser: Browser, serving: Yesterdays, **look: Any) -> None:
    browser.open(serving.address(), **look)
    browser.wait_for("document.documentElement.dataset.state === 'shown'")


GREY = """[...document.querySelectorAll('#page .thumb')].map((one) => {
    const { width, height } = one;
    return one.getContext('2d').getImageData(width / 2, height / 2, 1, 1).data;
}).map(([grey, , , opaque]) => opaque && grey)"""


@pytest.mark.parametrize("model", ["light", "light64"])
def test_yesterdays_least_sure_pictures_are_seen(serving: Yesterdays, browser: Browser, model: str) -> None:
    visit(browser, serving)
    choose(browser, span="yesterday", order="unsure", model=model)
    assert browser.text("[role=status].quiet") == "Found: 4"
    browser.run("document.querySelector('#page tbody').scrollIntoView()")
    browser.wait_for(f"({GREY}).filter((grey) => grey > 0).length === 4")
    greys = browser.run(GREY)
    assert sorted(greys[:2]) == [120, 140]
    assert sorted(greys[2:]) == [10, 250]
    browser.click("#page tbody tr:first-child button")
    browser.find("#one canvas")
    browser.picture(OUT / f"history-{model}.png")
    if model == "light64":
        assert "bytes)" in browser.text("#one pre"), "the text of the picture is cut short"
    browser.run(
        "[...document.querySelectorAll('#one button')].find((one) => one.innerText === 'Send it again').click()"
    )
    browser.wait_for("document.querySelector('#one').innerText.includes('Answered now: 200')")


def test_a_count_leads_to_what_was_counted(serving: Yesterdays, browser: Browser) -> None:
    visit(browser, serving)
    choose(browser, span="yesterday")
    browser.wait_for("document.querySelector('#counts tbody').rows.length === 2")
    browser.run("[...document.querySelectorAll('#counts button')].find((one) => one.innerText === 'dark').click()")
    browser.wait_for("document.querySelector('#label').value === 'dark'")
    browser.wait_for("document.querySelector('[role=status].quiet').innerText === 'Found: 4'")
    browser.run("document.querySelector('#by').value = 'day'")
    browser.run("document.querySelector('#by').dispatchEvent(new Event('change'))")
    yesterday = time.strftime("%Y-%m-%d", time.localtime(time.time() - DAY_S))
    browser.wait_for(f"document.querySelector('#counts tbody').innerText.startsWith('{yesterday}')")


def test_the_list_goes_on_where_it_ended(serving: Yesterdays, browser: Browser) -> None:
    visit(browser, serving)
    choose(browser, span="ever")
    assert browser.run("document.querySelector('#page tbody').rows.length") == 100
    browser.run("[...document.querySelectorAll('#page button')].find((one) => one.innerText === 'More').click()")
    browser.wait_for("document.querySelector('#page tbody').rows.length === 138")
    ids = browser.run(
        "[...document.querySelectorAll('#page tbody:first-of-type tr td:last-child')].map((one) => one.innerText)"
    )
    assert len(set(ids[:138])) == 138
    choose(browser, below="60")
    assert browser.run("document.querySelector('#page tbody').rows.length") == 4


def test_requests_over_time_are_drawn_with_a_table(serving: Yesterdays, browser: Browser) -> None:
    visit(browser, serving)
    browser.find("#over-time canvas")
    browser.click("#over-time summary")
    browser.wait_for("document.querySelector('#over-time tbody').rows.length > 0")
    browser.run(AXE.read_text() + "; undefined")
    found = browser.run("axe.run().then((all) => all.violations.map((one) => [one.id, one.nodes.map((n) => n.html)]))")
    assert found == []

"""What the page says around an answer: what would come now, a link to it, whether it was right; camera and paste."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.browser import Browser
from tests.live.serving import Serving, eventually
from tests.live.test_live_page import AXE, LOOKS, OUT

pytestmark = pytest.mark.live


NAMES = {"JSON", "curl", "Python", "English"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving("demo", "--history", tmp_path_factory.mktemp("history")) as serving:
        yield serving


def answered(browser: Browser, demo: Serving, **look: Any) -> None:
    """Open the page, and have a sample answered."""
    browser.open(demo.url + "/", **look)
    browser.click(".tile:nth-child(2)")
    assert browser.text(".word .big") == "玉"


@pytest.mark.parametrize("name", LOOKS)
def test_nothing_of_the_first_page_is_out_of_reach_for_anybody(demo: Serving, browser: Browser, name: str) -> None:
    answered(browser, demo, **LOOKS[name])
    browser.click(".known summary")
    browser.click(".verdict button[aria-pressed]:nth-of-type(2)")
    browser.text(".verdict [role=status]")
    browser.wait_for("document.getAnimations().length === 0")  # what is half faded has no contrast
    browser.run(AXE.read_text() + "; undefined")
    found = browser.run("axe.run().then((all) => all.violations.map((one) => [one.id, one.nodes.map((n) => n.html)]))")
    assert found == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "it fits the screen"
    browser.picture(OUT / f"{name.replace('live', 'try')}.png")


def test_the_page_says_what_would_come_now_within_the_limit(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/")
    assert browser.text(".outlook").startswith("Sent now: a full answer, in about")
    (model,) = demo.http.get("/v1/models").json()["models"]
    one, two, three = model["sent_now_ms"]
    assert 0 < one < two < three < 1000
    for limit, said in ((1, "the fallback"), (two + model["margin_ms"] + 0.01, "a partial answer, 2 of 3")):
        browser.fill("input[type=number][min='1']", str(limit))
        assert browser.wait_for(f"document.querySelector('.outlook').innerText.includes({json.dumps(said)})")


def test_a_fallback_is_called_no_time_to_read_it_instead_of_an_answer(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/")
    (model,) = demo.http.get("/v1/models").json()["models"]
    browser.fill("input[type=number][min='1']", str(model["margin_ms"] + model["sent_now_ms"][0] / 2))

    def fallback() -> str | None:
        browser.click(".tile:nth-child(2)")
        said = browser.text(".came")
        return browser.text(".word") if "fallback" in said else None  # where it came too late, there is a 504

    assert eventually(fallback, "a fallback in time") == "no time to read it"


def test_the_800_characters_can_be_searched(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/")
    browser.click(".known summary")
    browser.fill(".known input", "勇你")
    assert browser.text(".known [aria-live]") == "1 found; not among them: 你"
    shown = "[...document.querySelectorAll('.known .signs span:not([hidden])')].map((one) => one.textContent)"
    assert browser.run(shown) == ["勇"]
    assert browser.run("document.querySelectorAll('.known .signs span[hidden]').length") == 799
    browser.fill(".known input", " ")
    assert len(browser.run(shown)) == 800


def test_an_answer_has_a_link_that_shows_it_again(demo: Serving, browser: Browser) -> None:
    answered(browser, demo)
    address = browser.run("document.querySelector('.kept [data-link]').dataset.link")
    browser.open(address)
    assert browser.text(".word .big") == "玉"
    assert "from the store" in browser.text(".came .facts")
    assert "as the server kept it" in browser.text(".came")
    browser.open(f"{demo.url}/?result=nobody#handwriting")
    assert "no result" in browser.text(".came .problem")


def test_an_answer_is_judged_where_the_history_is_kept(demo: Serving, browser: Browser) -> None:
    answered(browser, demo)
    key = browser.run("new URL(document.querySelector('.kept [data-link]').dataset.link).searchParams.get('result')")
    browser.click(".verdict button[aria-pressed]:nth-of-type(2)")
    browser.fill(".verdict input", "王")
    browser.click(".verdict form button")
    browser.wait_for("document.querySelector('.verdict [role=status]').innerText === 'Noted: wrong, it is 王.'")

    def judged() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = demo.operator.get(f"/v1/history?key={key}&verdict=wrong").json()["outcomes"]
        return [row for row in found if row["right_label"]]  # the first click said no more than wrong

    (row,) = eventually(judged, "the verdict")
    assert (row["label"], row["right_label"]) == ("玉", "王")


def test_nobody_is_asked_for_a_verdict_that_is_not_kept(browser: Browser) -> None:
    with Serving("demo") as serving:
        answered(browser, serving)
        browser.find(".kept [data-link]")
        assert not browser.run("document.querySelector('.verdict')")


def test_a_picture_comes_from_the_camera(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/")
    before = browser.value("textarea[aria-label]")
    browser.click(".tools button:last-child")
    browser.click("dialog.camera[open] button.main:not([disabled])")
    browser.wait_for("document.querySelector('dialog') === null")
    browser.wait_for(f"document.querySelector('textarea[aria-label]').value !== {json.dumps(before)}")
    assert json.loads(browser.value("textarea[aria-label]"))["image"].startswith("/9j/"), "a JPEG"


def test_a_picture_is_pasted_wherever_the_cursor_is(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/")
    browser.find(".paper canvas")
    before = browser.value("textarea[aria-label]")
    browser.find(".thumb")
    browser.run("""new Promise((done) => document.querySelector('.thumb').toBlob((blob) => {
        const clipboardData = new DataTransfer();
        clipboardData.items.add(new File([blob], "one.png", { type: "image/png" }));
        done(void document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true })));
    }))""")
    browser.wait_for(f"document.querySelector('textarea[aria-label]').value !== {json.dumps(before)}")
    assert json.loads(browser.value("textarea[aria-label]"))["image"].startswith("iVBOR")


def test_samples_are_sent_once(demo: Serving) -> None:
    samples = demo.http.get("/v1/models/handwriting/samples")
    again = demo.http.get("/v1/models/handwriting/samples", headers={"If-None-Match": samples.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = demo.http.get("/v1/models/handwriting/samples", headers={"If-None-Match": '"other"'})
    assert other.json() == samples.json()


def test_the_page_speaks_chinese_where_the_reader_does(demo: Serving, browser: Browser) -> None:
    with browser.before_pages("Object.defineProperty(navigator, 'language', { get: () => 'zh-TW' });"):
        answered(browser, demo, **LOOKS["live-phone"])
        assert browser.run("document.documentElement.lang") == "zh-Hant"
        assert browser.text("button.main") == "送出"
        assert browser.text(".outlook").startswith("現在送出：完整回答，約")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "it fits the screen"
        controls = "[...document.querySelectorAll('button, label, summary, h3, dt')]"
        said = browser.run(f"{controls}.filter((one) => one.checkVisibility()).map((one) => one.innerText.trim())")
        english = [text for text in said if re.search("[A-Za-z]{3,}", text) and not re.search("[\u4e00-\u9fff]", text)]
        assert set(english) <= NAMES, "what is not translated is a name"
        browser.picture(OUT / "try-chinese.png")
        browser.run("document.querySelector('nav button').click()")
        browser.open(demo.url + "/")
        assert browser.text("button.main") == "Send", "the reader's choice counts for more than the browser's language"
    browser.run("localStorage.clear()")

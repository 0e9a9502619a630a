"""The live page in a real browser, on one server that was given too much. Screenshots are kept in out/."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.browser import Browser
from tests.live.serving import MODELS, Serving, eventually

from timebound.cli import main

pytestmark = pytest.mark.live

OUT = Path(__file__).parents[2] / "out"
AXE = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"
LOOKS: dict[str, dict[str, Any]] = {
    "live": {"width": 1200},
    "live-dark": {"width": 1200, "dark": True},
    "live-phone": {"width": 375, "height": 812},
    "live-phone-dark": {"width": 375, "height": 812, "dark": True},
}


TEN_MINUTES = """
    const real = window.fetch;
    window.fetch = async (url, options) => {
        const answer = await real(url, options);
        if (!String(url).includes("/v1/live/past")) return answer;
        const past = await answer.json();
        const full = (column) => Array.from({ length: 600 }, (_, n) => column[n % column.length]);
        const now = past.at.at(-1);
        past.columns = Object.fromEntries(Object.entries(past.columns).map(([name, column]) => [name, full(column)]));
        past.at = Array.from({ length: 600 }, (_, n) => now - 599 + n);
        window.rows = past.at.length;
        const batch = (n) => ({ ...past.batches[n % past.batches.length], started: now - n / 10 });
        past.batches = Array.from({ length: 300 }, (_, n) => batch(n));
        return new Response(JSON.stringify(past));
    };
"""
"""Makes whole minutes of a server's few seconds: what a page gets then is as much as it ever gets."""


class Watched(Serving):
    """A server with a past: an overload of one model, and retries of another's requests."""

    kept: Path
    """The folder of its history."""

    def fill(self) -> None:
        """Ask far more than can be done, until some of everything has come of it."""
        senders = [threading.Thread(target=self._send, args=(name,)) for name in ["takes"] * 24 + ["votes"] * 2]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        eventually(lambda: len(self.see("past")["at"]) >= 3, "three seconds of past")

    def _send(self, name: str) -> None:
        with httpx.Client(base_url=self.url, trust_env=False, timeout=20.0) as client:
            for number in range(12):
                body = {"s": 0.02} if name == "takes" else {"x": 1.0, "id": f"key-{number // 2}"}
                client.post(f"/{name}", json=body)

    def see(self, what: str, **query: str) -> Any:
        """What the page is given, as the operator gets it."""
        return self.operator.get(f"/v1/live/{what}", params=query).raise_for_status().json()

    def address(self) -> str:
        """The page's address with a pass."""
        return f"{self.url}/live#pass={self.operator.post('/v1/live/pass').json()['pass']}"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    kept = ("--history", tmp_path_factory.mktemp("history"))
    with Watched(MODELS / "watched.py", "--workers", "1", "--slots", "1", *kept) as serving:
        serving.kept = kept[1]
        serving.fill()
        yield serving


def visit(browser: Browser, serving: Watched, **look: Any) -> None:
    """Open the page, and wait until it shows the past."""
    browser.open(serving.address(), **look)
    browser.wait_for("document.documentElement.dataset.state === 'live'")


@pytest.mark.parametrize("name", LOOKS)
def test_nothing_on_the_page_is_out_of_reach_for_anybody(serving: Watched, browser: Browser, name: str) -> None:
    visit(browser, serving, **LOOKS[name])
    browser.run(AXE.read_text() + "; undefined")
    found = browser.run("axe.run().then((all) => all.violations.map((one) => [one.id, one.nodes.map((n) => n.html)]))")
    assert found == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "it fits the screen"
    assert browser.run(
        "[...document.querySelectorAll('.chart')].every((chart) => chart.querySelector('table caption'))"
    )
    browser.picture(OUT / f"{name}.png")


def test_a_new_tab_shows_the_past_within_a_second(serving: Watched, browser: Browser) -> None:
    taken = []
    with browser.before_pages(TEN_MINUTES):
        for _ in range(3):
            visit(browser, serving)
            taken.append(browser.run("performance.getEntriesByName('live')[0].startTime"))
            # Of ten minutes; those that have come since are more.
            assert browser.run("document.querySelector('#timeline canvas') && window.rows") == 600
    assert sorted(taken)[1] < 1000, "other tests may have the cores once"
    visit(browser, serving)
    browser.wait_for("document.querySelectorAll('.chart canvas').length === 11")
    browser.click(".chart summary")
    assert browser.wait_for("document.querySelectorAll('.chart tbody tr').length") >= 3


def test_an_overload_shows_its_reasons_in_plain_words(serving: Watched, browser: Browser) -> None:
    visit(browser, serving)
    browser.run("document.querySelector('#reason').value = 'overloaded'")
    browser.run("document.querySelector('#reason').dispatchEvent(new Event('change'))")
    browser.wait_for("document.querySelector('.log li:first-child')?.dataset.kind === 'refused'")
    said = browser.text("#decisions .log li:first-child span")
    assert said.startswith("takes: refused, because")
    assert "It would have taken" in said
    kinds = {made["kind"] for made in serving.see("decisions")["decisions"]}
    assert {"refused", "batch"} <= kinds
    assert (
        serving.see("decisions", reason="joined")["decisions"] or serving.see("decisions", reason="stored")["decisions"]
    )


def test_a_refused_requests_id_finds_its_decision_and_its_budget(serving: Watched, browser: Browser) -> None:
    wanted = serving.see("decisions", reason="overloaded")["decisions"][0]
    visit(browser, serving)
    browser.fill("#request-id", wanted["request"])
    browser.click("#decisions form button")
    browser.find(".bar [data-part=waiting]")
    assert wanted["predicted_ms"] > 0
    assert wanted["actual_ms"] > 0
    assert browser.wait_for("document.querySelectorAll('#decisions .log li').length === 1")
    (found,) = serving.see(f"requests/{wanted['request']}")["decisions"]
    assert (found["predicted_ms"], found["actual_ms"]) == (wanted["predicted_ms"], wanted["actual_ms"])


def test_the_parts_of_a_requests_bar_add_up_to_its_time(serving: Watched, browser: Browser) -> None:
    for path, body in (("/votes", {"x": 1.0}), ("/takes", {"s": 0.01})):

        def asked(path: str = path, body: Any = body) -> bool:
            """Ask; whether the server's time is the client's, but for the way there and back."""
            began = time.perf_counter()
            answer = serving.http.post(path, json=body, headers={"X-Request-Id": f"bar{path}"}).raise_for_status()
            clients_ms = (time.perf_counter() - began) * 1e3
            told = serving.see(f"requests/bar{path}")
            assert sum(part["ms"] for part in told["parts"]) == pytest.approx(told["total_ms"], abs=0.01)
            # The last part is what is left over: the others are held to the headers, the sum to the client's clock.
            times = re.findall(r"(\w+);dur=([\d.]+)", answer.headers["server-timing"])
            sent = {name: float(ms) for name, ms in times}
            parts = {part["part"]: part["ms"] for part in told["parts"]}
            members = sum(ms for part, ms in parts.items() if part.startswith("member"))
            bar = {**{name: parts[name] for name in ("queue", "prepare", "finish")}, "infer": parts["infer"] + members}
            assert bar == pytest.approx(sent, abs=1.0)
            assert sum(sent.values()) <= told["total_ms"] + 0.1
            return bool(abs(told["total_ms"] - clients_ms) < 10.0)

        eventually(asked, "a moment in which the client is not kept from its clock")
        told = serving.see(f"requests/bar{path}")
        visit(browser, serving)
        browser.fill("#request-id", f"bar{path}")
        browser.click("#decisions form button")
        browser.find(".bar [data-part=infer]" if path == "/takes" else ".bar [data-part]")
        pieces = "[...document.querySelectorAll('.bar span')].map((one) => [one.dataset.part, Number(one.dataset.ms)])"
        beside = 2 if told["beside"] else 0  # a bar for each, and a sentence
        assert browser.run("document.querySelector('#request .bar').parentElement.children.length") == 4 + beside
        assert browser.run("document.querySelectorAll('#request .lane').length") == len(told["beside"])
        shown = {part: ms for part, ms in browser.run(pieces) if part not in ("left", "margin")}
        assert sum(shown.values()) == pytest.approx(told["total_ms"], abs=1.0)


def test_the_page_goes_on_by_itself_and_follows_one_model(serving: Watched, browser: Browser) -> None:
    visit(browser, serving)
    browser.run("document.querySelector('#model').value = 'votes'")
    browser.run("document.querySelector('#model').dispatchEvent(new Event('change'))")
    serving.http.post("/votes", json={"x": 1.0})
    browser.wait_for("document.querySelector('.tiles').innerText.includes('of 500 ms')")
    # A second's figure stands until the next one's: a busy page may miss it, so there is one in each.
    newest = "/came [1-9]/.test([...document.querySelectorAll('.chart')][0].innerText)"
    eventually(lambda: serving.http.post("/votes", json={"x": 1.0}).is_success and browser.run(newest), "its requests")


def test_a_page_that_stood_still_shows_what_came_meanwhile_when_it_goes_on(serving: Watched, browser: Browser) -> None:
    visit(browser, serving)
    pause = "[...document.querySelectorAll('form.filter button')].find((one) => one.ariaPressed !== null)"
    browser.run(f"{pause}.click()")
    before = browser.run("document.querySelector('#decisions .log').innerText")
    serving.http.post("/takes", json={"s": "a word"}, headers={"X-Request-Id": "while-paused"})
    eventually(lambda: serving.see("decisions", request="while-paused")["decisions"], "its decision")
    ticks = len(serving.see("past")["at"])
    eventually(lambda: len(serving.see("past")["at"]) > ticks + 1, "messages that the page gets")
    assert browser.run("document.querySelector('#decisions .log').innerText") == before
    browser.run(f"{pause}.click()")
    browser.wait_for("document.querySelector('#decisions .log').innerText.includes('while-paused')")


def test_a_chart_has_a_line_for_each_reason_that_there_was(serving: Watched, browser: Browser) -> None:
    serving.http.post("/takes", json={"s": "a word"})
    counted = "document.querySelectorAll('.chart')[7].innerText"
    visit(browser, serving)
    eventually(lambda: "bad_input" in browser.run(counted), "the new reason")
    assert "overloaded" in browser.run(counted)
    assert "draining" not in browser.run(counted)
    assert browser.run("[...document.querySelectorAll('.chart')].filter((one) => one.hidden).length") == 2, "no GPUs"


def test_drift_is_on_the_page_and_told_by_the_command(
    serving: Watched, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    serving.http.post("/votes", json={"x": 1.0, "id": "not asked before"}).raise_for_status()
    visit(browser, serving)
    browser.wait_for("document.querySelector('#drift tbody').innerText.includes('learning')")
    assert main(["drift", "--url", serving.url]) == 0
    assert "learning" in capsys.readouterr().out
    assert main(["drift", "--url", serving.url, "--learn", "votes"]) == 0
    assert main(["drift", "--url", serving.url, "--learn", "nobody"]) == 2
    given = {"Authorization": f"Bearer {serving.address().partition('=')[2]}"}
    assert serving.http.get("/v1/live/drift", headers=given).status_code == 200
    assert serving.http.post("/v1/live/drift/votes/learn", headers=given).status_code == 403


def test_without_a_pass_the_page_asks_for_one_and_a_pass_only_looks(serving: Watched, browser: Browser) -> None:
    assert serving.http.get("/v1/live/past").status_code == 403
    assert serving.http.post("/v1/live/pass").status_code == 403
    browser.open(f"{serving.url}/live")
    browser.run("sessionStorage.clear()")  # what another test's page kept
    browser.open(f"{serving.url}/live")
    browser.find(".door")
    assert browser.text(".door code") == f"timebound live --url {serving.url}"
    assert "--admin-token" not in browser.text(".door"), "nothing was given that could be wrong"
    browser.fill("#pass", "of another server")
    browser.click(".door button")
    browser.wait_for("document.querySelector('.door')?.innerText.includes('knows no such pass')")
    given = serving.address().partition("=")[2]
    browser.fill("#pass", given)
    browser.click(".door button")
    browser.wait_for("document.querySelectorAll('.chart canvas').length === 11")
    headers = {"Authorization": f"Bearer {given}"}
    assert serving.http.get("/v1/live/past", headers=headers).status_code == 200
    assert serving.http.post("/v1/reload", headers=headers).status_code == 403


def test_the_page_speaks_the_readers_language(serving: Watched, browser: Browser) -> None:
    visit(browser, serving)
    browser.run("localStorage.setItem('timebound-language', 'zh-Hant')")
    visit(browser, serving)
    assert (browser.run("document.documentElement.lang"), browser.text("h1")) == ("zh-Hant", "即時")
    browser.run("localStorage.clear()")


def test_the_timeline_is_a_trace_that_viewers_read(serving: Watched) -> None:
    events = serving.see("trace.json")["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in spans} == {"takes", "votes"}
    assert all(event["dur"] > 0 and event["args"]["size"] <= 4 for event in spans if event["name"] == "takes")


def test_a_server_with_open_tabs_stops_at_once() -> None:
    with Watched(MODELS / "watched.py", "--workers", "1") as serving, serving.by_socket() as operator:
        with operator.stream("GET", "/v1/live") as stream:
            lines = stream.iter_lines()
            assert json.loads(next(lines).removeprefix("data: "))["all"]["asked"] == 0
            assert serving.gauge("live_watchers") == 1
            with serving.by_socket() as other, other.stream("GET", "/v1/live") as second:
                others = second.iter_lines()
                next(others)
                assert serving.gauge("live_watchers") == 2
            eventually(lambda: serving.gauge("live_watchers") == 1, "the one that left is forgotten")
            serving.signal(signal.SIGTERM)
            assert [line for line in lines if line.startswith("data: x")] == []
        assert serving.process.wait(5) == 0


# ---------------------------------------------------------------------- history


def open_history(browser: Browser, serving: Watched, **look: Any) -> None:
    """Open the history, once it has requests to show."""
    found = "/v1/history?model=votes&quality=full"
    eventually(lambda: serving.operator.get(found).json()["outcomes"], "outcomes in the history")
    browser.open(serving.address().replace("/live", "/history"), **look)
    browser.wait_for("document.documentElement.dataset.state === 'shown'")


def test_on_a_phone_the_first_screen_of_the_history_reaches_what_was_found(serving: Watched, browser: Browser) -> None:
    open_history(browser, serving, width=375, height=812)
    assert browser.run("document.querySelector('#outcomes').getBoundingClientRect().top < innerHeight")


@pytest.mark.parametrize("name", LOOKS)
def test_nothing_of_the_history_is_out_of_reach_for_anybody(serving: Watched, browser: Browser, name: str) -> None:
    open_history(browser, serving, **LOOKS[name])
    browser.run(AXE.read_text() + "; undefined")
    found = browser.run("axe.run().then((all) => all.violations.map((one) => [one.id, one.nodes.map((n) => n.html)]))")
    assert found == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "it fits the screen"
    browser.picture(OUT / f"{name.replace('live', 'history')}.png")


def test_a_request_is_looked_at_judged_and_sent_again(serving: Watched, browser: Browser) -> None:
    body = {"x": 3.0, "id": "judge-me", "secret": "s3cret"}
    serving.http.post("/votes", json=body).raise_for_status()
    eventually(lambda: serving.operator.get("/v1/history?key=judge-me").json()["outcomes"], "it is in the history")
    open_history(browser, serving)
    browser.fill("#key", "judge-me")
    browser.click("form.filter button")
    browser.wait_for("document.querySelectorAll('#page table tbody tr').length >= 1")
    browser.wait_for("document.querySelector('#page table tbody').rows.length === 1")
    browser.click("#page table tbody button")
    browser.wait_for("document.querySelector('#one').innerText.includes('3.0')")
    assert "s3cret" not in browser.text("#one")
    browser.run("[...document.querySelectorAll('#one button')].find((one) => one.innerText === 'wrong').click()")
    judged = "/v1/history?verdict=wrong"
    (found,) = eventually(lambda: serving.operator.get(judged).json()["outcomes"], "the verdict")
    assert (found["key"], found["right_label"], found["label"]) == ("judge-me", "big", "big")
    browser.run(
        "[...document.querySelectorAll('#one button')].find((one) => one.innerText === 'Send it again').click()"
    )
    browser.wait_for("document.querySelector('#one').innerText.includes('Answered now: 200')")


def test_the_history_is_exported_and_counted_without_the_server(
    serving: Watched, browser: Browser, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    open_history(browser, serving)
    assert main(["history", "stats", str(serving.kept), "--by", "code", "--only", "model=takes"]) == 0
    assert "overloaded" in capsys.readouterr().out
    out = tmp_path / "kept.ndjson"
    asked = ["history", "export", str(serving.kept), "--only", "has_input=1", "--format", "ndjson", "--out", str(out)]
    assert main(asked) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows
    assert {row["model"] for row in rows} == {"votes"}
    by_server = serving.operator.get("/v1/history/export", params={"format": "ndjson", "has_input": "1"})
    assert len(by_server.text.splitlines()) >= len(rows)


def test_feedback_is_taken_from_clients_and_the_history_shown_to_the_operator_alone(serving: Watched) -> None:
    assert serving.http.get("/v1/history").status_code == 403
    assert serving.http.post("/v1/feedback/votes/any", json={"verdict": "right"}).status_code == 202
    wrong = serving.http.post("/v1/feedback/votes/any", json={"verdict": "maybe"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "verdict")

"""The pages in a real browser: what a person can do on them, and sees. Screenshots are kept in out/."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.live.browser import Browser
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, clean_environment

from timebound.admission.keys import hash_of
from timebound.scaffold.scaffold import write_application

pytestmark = pytest.mark.live

OUT = Path(__file__).parents[2] / "out"
BRAVE = (  # 勇, stroke by stroke
    [(0.33, 0.14), (0.64, 0.13), (0.5, 0.24)],
    [(0.44, 0.2), (0.56, 0.29)],
    [(0.29, 0.32), (0.3, 0.6)],
    [(0.29, 0.32), (0.71, 0.31), (0.7, 0.6)],
    [(0.3, 0.45), (0.7, 0.45)],
    [(0.5, 0.32), (0.5, 0.58)],
    [(0.3, 0.58), (0.7, 0.58)],
    [(0.22, 0.69), (0.76, 0.67), (0.68, 0.93), (0.6, 0.89)],
    [(0.49, 0.6), (0.45, 0.76), (0.25, 0.94)],
)
CROSS = [(0.2, 0.5), (0.5, 0.49), (0.8, 0.48)], [(0.5, 0.15), (0.5, 0.5), (0.49, 0.85)]


@pytest.fixture(scope="module")
def demo() -> Iterator[Serving]:
    with Serving("demo") as serving:
        yield serving


@pytest.fixture(scope="module")
def showcase() -> Iterator[Serving]:
    with Serving(MODELS / "showcase.py") as serving:
        yield serving


def within(selector: str) -> str:
    """A selector inside the model that is shown."""
    return f".card:not([hidden]) {selector}"


def send(browser: Browser) -> None:
    """Press Send, and wait until the answer to it is there."""
    browser.find(within("button.main"))
    browser.run(f"document.querySelector({json.dumps(within('.result'))}).replaceChildren()")
    browser.click(within("button.main"))
    browser.text(within(".outcome, .problem"))


def body(browser: Browser) -> Any:
    """The JSON body that the page would send now."""
    return json.loads(browser.value(within("textarea[aria-label]")))


def copied(browser: Browser) -> str:
    """What the Copy button puts on the clipboard."""
    browser.run(
        "Object.defineProperty(navigator, 'clipboard', "
        "{ configurable: true, value: { writeText: async (t) => (window.took = t) } })"
    )
    browser.run("window.took = ''")
    browser.click(within(".same button"))
    return str(browser.wait_for("window.took"))


def test_a_character_drawn_on_the_page_is_read_and_every_member_votes(demo: Serving, browser: Browser) -> None:
    for name, look in {"page": {}, "page-dark": {"dark": True}, "page-phone": {"width": 390, "height": 844}}.items():
        browser.open(demo.url + "/", **look)  # type: ignore[arg-type]
        browser.wait_for("document.querySelectorAll('.tile').length === 18")
        browser.draw(within(".paper canvas"), *BRAVE)
        send(browser)
        assert browser.text(within(".word .big")) == "勇"
        votes = browser.run("[...document.querySelectorAll('.ballot')].map((one) => one.innerText.split(/\\s+/))")
        assert [vote[:2] for vote in votes] == [["mobile_slim", "勇"], ["mobile_wide", "勇"], ["lite", "勇"]]
        assert "full" in browser.text(within(".came .facts"))
        assert "infer" in browser.text(within(".legend"))
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "it fits the screen"
        browser.picture(OUT / f"{name}.png")
        assert (OUT / f"{name}.png").stat().st_size > 20_000


def test_what_is_drawn_goes_out_as_256_pixels_black_on_white(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/")
    browser.find(".paper canvas")
    browser.draw(within(".paper canvas"), [(0.25, 0.5), (0.5, 0.5), (0.75, 0.5)])
    sent = body(browser)["image"]
    picture = Image.open(io.BytesIO(base64.b64decode(sent))).convert("L")
    assert picture.size == (256, 256)
    assert (picture.getpixel((5, 5)), picture.getpixel((128, 128))) == (255, 0)
    assert picture.getpixel((128, 160)) == 255, "the pen is no brush"
    browser.click(within(".tools button"))
    cleared = Image.open(io.BytesIO(base64.b64decode(body(browser)["image"]))).convert("L")
    assert cleared.getextrema() == (255, 255)


def test_a_sample_is_answered_by_one_click(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/")
    browser.click(".tile:nth-child(2)")
    assert browser.text(within(".word .big")) == "玉"


def test_samples_on_forms_are_read_or_are_none_of_the_800(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/")
    for title, said in {"林": "林", "他": "none of the 800"}.items():
        browser.click(f".tile[title='{title}']")
        browser.wait_for(f"document.querySelector({json.dumps(within('.word .big'))})?.innerText === '{said}'")
        browser.picture(OUT / f"page-form-{'read' if title == said else 'none'}.png")


def test_the_copied_call_gives_the_same_answer(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/")
    browser.find(".paper canvas")
    browser.draw(within(".paper canvas"), *BRAVE)
    send(browser)
    said = subprocess.run(["bash", "-c", copied(browser)], capture_output=True, text=True, check=True, timeout=20)
    assert json.loads(said.stdout.splitlines()[-1])["answer"] == "勇"
    assert "timebound-source: stored" in said.stdout, "it has the same key, so it is the same request"


def run_python(browser: Browser, folder: Path, *, fails: bool = False) -> list[str]:
    """What the program on the Python tab prints, line by line; or what it complains of if it `fails`."""
    browser.click(within(".same input[value=python]"))
    program, clean = [sys.executable, "-c", copied(browser)], clean_environment()
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=30, env=clean, check=False)
    assert (done.returncode != 0) is fails, done.stderr
    return (done.stderr if fails else done.stdout).splitlines()


def test_the_copied_python_program_gives_the_same_answer(demo: Serving, browser: Browser, tmp_path: Path) -> None:
    browser.open(demo.url + "/")
    browser.find(".paper canvas")
    browser.draw(within(".paper canvas"), *BRAVE)
    browser.fill(within(".options input[type=number]"), "5000")
    send(browser)
    value, how = run_python(browser, tmp_path)
    assert "'answer': '勇'" in value
    assert how == "full stored", "it has the same key, so it is the same request"
    shown = browser.text(within("pre[aria-label='The same call for Python']"))
    assert "deadline=5" in shown
    assert "… " in shown, "the picture is cut where it is only shown"
    assert not browser.is_seen(within("pre[aria-label='The same call for curl']"))
    browser.picture(OUT / "page-python.png")


def test_a_body_of_any_kind_is_written_in_python(showcase: Serving, browser: Browser, tmp_path: Path) -> None:
    browser.open(showcase.url + "/#mood")
    browser.click(within(".ways input[value=json]"))
    text = r'{"text": "good \ud83d\ude00 \/ \"day\" \n # é", "shout": true, "tags": [], "max_words": 20}'
    browser.fill(within("textarea[aria-label]"), text)
    assert "'label': 'POSITIVE'" in run_python(browser, tmp_path)[0]
    browser.fill(within("textarea[aria-label]"), '{"text": ')
    assert "BadRequest: the body is not valid JSON" in run_python(browser, tmp_path, fails=True)[-1]

    browser.open(showcase.url + "/#count")
    browser.fill(within("textarea.prose"), "Grüße, it's me")
    assert run_python(browser, tmp_path)[0] == "{'bytes': 16, 'first': '47'}"
    browser.click(within(".ways input[value=file]"))
    (tmp_path / "some.bin").write_bytes(b"\xff" * 77)
    browser.upload(within("input[type=file]"), tmp_path / "some.bin")
    browser.wait_for(f"document.querySelector({json.dumps(within('.drop'))}).innerText.includes('some.bin')")
    assert run_python(browser, tmp_path)[0] == "{'bytes': 77, 'first': 'ff'}"

    browser.open(showcase.url + "/#mirror")
    browser.find(within(".paper canvas"))
    Image.new("L", (8, 8)).save(tmp_path / "photo.jpg")
    assert "PNG" in run_python(browser, tmp_path)[0]
    browser.draw(within(".paper canvas"), [(0.2, 0.2), (0.2, 0.8)])
    assert "PNG" in run_python(browser, tmp_path)[0]


def test_a_text_is_typed_and_its_answer_read(showcase: Serving, browser: Browser) -> None:
    browser.open(showcase.url + "/#mood")
    browser.fill(within("textarea.prose"), "a bad, bad day")
    browser.click(within(".more summary"))
    browser.click(within("input[type=checkbox]"))
    send(browser)
    assert browser.text(within(".word .big")) == "NEGATIVE"
    assert "75 %" in browser.text(within(".shares"))
    assert body(browser) == {"text": "a bad, bad day", "shout": True}
    browser.picture(OUT / "page-text.png")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("text", "", "the text is empty; write a few words"),
        ("max_words", "many", "Expected 'int', got 'str'"),
        ("max_words", "101", "Expected 'int' <= 100"),
        ("tags", "[1]", "Expected 'str', got 'int'"),
        ("tags", '["a", ', "Expected 'array', got 'str'"),
    ],
)
def test_wrong_input_is_said_beside_its_field(
    showcase: Serving, browser: Browser, name: str, value: str, sentence: str
) -> None:
    browser.open(showcase.url + "/#mood")
    field = f"[data-name={name}]"
    browser.wait_for(f"document.querySelector('.card:not([hidden]) {field}')")
    browser.run("document.querySelector('.card:not([hidden]) .more').open = true")
    control = within(f"{field} :is(input, textarea)")
    browser.fill(control, value)
    if not value:
        browser.send("Input.dispatchKeyEvent", type="keyDown", key="Delete", code="Delete", windowsVirtualKeyCode=46)
    browser.run("document.querySelector('.card:not([hidden]) .more').open = false")
    send(browser)
    assert browser.text(within(f"{field} .complaint")) == sentence
    assert browser.run(f"document.querySelector('{control}').getAttribute('aria-invalid')") == "true"
    assert browser.is_seen(within(f"{field} .complaint")), "also where the field was folded away"
    assert sentence in browser.text(within(".result .problem"))
    browser.picture(OUT / "page-problem.png")
    browser.fill(control, "9")
    assert not browser.is_seen(within(f"{field} .complaint")), "it goes away when the field is edited"


def test_form_and_json_are_one_body(showcase: Serving, browser: Browser) -> None:
    browser.open(showcase.url + "/#mood")
    browser.click(within(".ways input[value=json]"))
    browser.fill(
        within("textarea[aria-label]"), '{"text": "good", "max_words": 12345678901234567890, "language": "de"}'
    )
    browser.click(within(".ways input[value=form]"))
    assert browser.value(within("textarea.prose")) == "good"
    assert browser.value(within(".form select")) == '"de"'
    browser.fill(within("textarea.prose"), "very good")
    raw = browser.value(within("textarea[aria-label]"))
    assert raw == '{"text": "very good", "max_words": 12345678901234567890, "language": "de"}'
    browser.click(within(".ways input[value=json]"))
    browser.fill(within("textarea[aria-label]"), "{")
    assert "not valid JSON" in browser.text(within(".complaint:not([hidden])"))
    send(browser)
    assert "malformed_json" in browser.text(within(".result .problem"))


def test_ctrl_enter_sends(showcase: Serving, browser: Browser) -> None:
    browser.open(showcase.url + "/#mood")
    browser.fill(within("textarea.prose"), "good")
    browser.send("Input.dispatchKeyEvent", type="rawKeyDown", key="Enter", windowsVirtualKeyCode=13, modifiers=2)
    assert browser.text(within(".word .big")) == "positive"


def test_raw_bytes_come_from_a_text_or_a_file(showcase: Serving, browser: Browser, tmp_path: Path) -> None:
    browser.open(showcase.url + "/#count")
    browser.fill(within("textarea"), "Grüße, it's me")
    send(browser)
    assert browser.text(within(".word .big")) == "16"
    said = subprocess.run(["bash", "-c", copied(browser)], capture_output=True, text=True, check=True, timeout=20)
    assert said.stdout.splitlines()[-1] == '{"bytes":16,"first":"47"}'
    (tmp_path / "first.bin").write_bytes(b"\x00" * 1000)
    (tmp_path / "second.bin").write_bytes(b"\xff" * 77)
    browser.click(within(".ways input[value=file]"))
    browser.upload(within("input[type=file]"), tmp_path / "first.bin")
    assert "first.bin" in browser.text(within(".drop"))
    send(browser)
    assert browser.text(within(".word .big")) == "1000"
    browser.drop(within(".drop"), tmp_path / "second.bin")
    assert "77 bytes" in browser.wait_for(f"document.querySelector({json.dumps(within('.drop'))}).innerText")
    send(browser)
    assert browser.text(within(".word .big")) == "77"
    browser.picture(OUT / "page-bytes.png")


def test_a_raw_picture_is_drawn_and_a_picture_comes_back(showcase: Serving, browser: Browser) -> None:
    browser.open(showcase.url + "/#mirror")
    browser.find(within(".paper canvas"))
    browser.draw(within(".paper canvas"), [(0.2, 0.2), (0.2, 0.8)])
    send(browser)
    browser.find(".came-picture")
    ink = "document.querySelector('.came-picture').getContext('2d')"
    tones = [browser.run(f"{ink}.getImageData({across}, 128, 1, 1).data[0]") for across in (51, 204)]
    assert tones == [255, 0]
    said = subprocess.run(["bash", "-c", copied(browser)], capture_output=True, check=True, timeout=20).stdout
    assert b"HTTP/1.1 200" in said
    assert b"\x89PNG" in said
    browser.picture(OUT / "page-picture.png")


def test_without_a_picture_curl_is_shown_with_a_file(showcase: Serving, browser: Browser, tmp_path: Path) -> None:
    browser.open(showcase.url + "/#mirror")
    browser.find(within(".paper canvas"))
    command = copied(browser)
    assert command.endswith("-H 'Content-Type: image/jpeg' \\\n  --data-binary '@photo.jpg'")
    Image.new("L", (8, 8)).save(tmp_path / "photo.jpg")
    said = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=True, timeout=20).stdout
    assert b"HTTP/1.1 200" in said


def test_a_new_image_application_has_a_board_and_a_sample(browser: Browser, tmp_path: Path) -> None:
    write_application(tmp_path / "colours", "image")
    with Serving(tmp_path / "colours") as serving:
        browser.open(serving.url + "/")
        browser.find(within(".paper canvas"))
        browser.click(".tile")
        assert browser.text(within(".word .big")) == "green"


def test_a_picture_in_a_field_comes_from_the_board_or_a_file(
    showcase: Serving, browser: Browser, tmp_path: Path
) -> None:
    browser.open(showcase.url + "/#characters")
    browser.find(within(".paper canvas"))
    browser.draw(within(".paper canvas"), *CROSS)
    send(browser)
    assert browser.text(within(".word .big")) == "十"
    views = browser.run("[...document.querySelectorAll('.ballot')].map((one) => one.dataset.view)")
    assert views == ["agrees", "agrees", "differs"]
    assert set(body(browser)) == {"esun_uuid", "image"}
    assert body(browser)["esun_uuid"] != "e", "each call has a key of its own"
    browser.picture(OUT / "page-characters.png")
    paper = Image.new("L", (300, 200), 255)
    paper.paste(0, (20, 95, 280, 105))
    paper.save(tmp_path / "flat.png")
    browser.drop(within(".paper"), tmp_path / "flat.png")
    editor = json.dumps(within("textarea[aria-label]"))
    browser.wait_for(f"atob(JSON.parse(document.querySelector({editor}).value).image).length < 2000")
    assert base64.b64decode(body(browser)["image"]) == (tmp_path / "flat.png").read_bytes()
    send(browser)
    assert browser.text(within(".word .big")) == "一"


def test_several_models_are_picked_by_name_and_by_address(showcase: Serving, browser: Browser) -> None:
    browser.open(showcase.url + "/")
    browser.wait_for("document.querySelectorAll('#picker a').length === 4")
    assert browser.text(".card:not([hidden]) h2") == "mood"
    browser.click("#picker a:nth-child(2)")
    browser.wait_for("document.querySelector('.card:not([hidden]) h2').innerText === 'count'")
    assert browser.run("document.querySelector('#picker [aria-current]').innerText") == "count"
    assert browser.run("location.hash") == "#count"
    assert browser.run("document.querySelectorAll('.card:not([hidden])').length") == 1


def test_one_model_needs_no_picker(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/")
    browser.find(".card")
    assert not browser.is_seen("#picker")


def test_a_model_that_loads_is_said_to_and_appears_when_it_is_ready(browser: Browser, gate: Gate) -> None:
    waiting = Serving(MODELS / "waits.py", environment={"LOAD_GATE": str(gate.path)}, until_ready=False)
    with waiting as serving:
        browser.open(serving.url + "/")
        assert "loading" in browser.text("#notice")
        assert browser.text("#ready") == "not ready"
        browser.picture(OUT / "page-loading.png")
        gate.open()
        assert browser.text(".card h2") == "waits"
        browser.wait_for("document.querySelector('#ready').innerText === 'ready'")
        assert not browser.is_seen("#notice")


def test_members_that_had_no_time_are_shown_as_absent(browser: Browser, gate: Gate) -> None:
    with Serving(MODELS / "voters.py", "--workers", "1") as serving:
        browser.open(serving.url + "/")
        browser.click(".ways input[value=json]")
        text = json.dumps({"value": 10, "gate": str(gate.path), "pause_s": 0.5})
        browser.fill("textarea[aria-label]", text)
        browser.fill(".options input[type=number]", "2000")
        send(browser)
        assert "partial" in browser.text(".came .facts")
        votes = browser.run("[...document.querySelectorAll('.ballot')].map((one) => one.innerText.split(/\\n+/)[1])")
        assert votes == ["11", "12", "not in this answer"]
        browser.picture(OUT / "page-partial.png")
        gate.open()


def test_a_server_that_is_gone_is_said_to_be(browser: Browser) -> None:
    with Serving(MODELS / "echo.py") as serving:
        browser.open(serving.url + "/")
        browser.text(".card h2")
    send(browser)
    assert "The server did not answer" in browser.text(".result .problem")
    browser.wait_for("document.querySelector('#notice').innerText.includes('does not answer')")


def test_the_docs_page_shows_the_api_without_the_internet(demo: Serving, browser: Browser) -> None:
    browser.open(demo.url + "/docs")
    assert "/inference" in browser.text(".swagger-ui .opblock")
    assert "Failed to load" not in browser.text("body")


def test_the_page_asks_for_a_key_where_the_server_wants_one(one_browser: Browser, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[me]\nhash = "{hash_of(b"sesame")}"\n')
    with Serving(MODELS / "showcase.py", "--keys", keys) as serving:
        one_browser.open(serving.url)
        one_browser.find("#key input")
        one_browser.fill("#key input", "wrong")
        one_browser.click("#key button")
        one_browser.wait_for("document.querySelector('#key')?.textContent.includes('does not know')")
        one_browser.fill("#key input", "sesame")
        one_browser.click("#key button")
        one_browser.find(within("button.main"))
        send(one_browser)
        assert "YOUR-KEY" in one_browser.text(".card:not([hidden]) pre[aria-label='The same call for curl']")
        one_browser.click(within(".same input[value=python]"))
        assert 'api_key="YOUR-KEY"' in one_browser.text(within("pre[aria-label='The same call for Python']"))
        assert "sesame" not in one_browser.run("document.body.innerText")
        one_browser.open(f"{serving.url}/docs")
        one_browser.find(".opblock")
    one_browser.complaints.clear()  # the browser notes every 401 of its own accord

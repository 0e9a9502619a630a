"""A real Chromium without a window, driven over its debugging pipe: pages are opened, clicked, drawn on, looked at."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

PATIENCE_S = 30.0

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
    "--use-fake-device-for-media-stream",  # a camera for pages that ask for one
    "--use-fake-ui-for-media-stream",
]


class Browser:
    """One browser with one tab. Messages cross as JSON, each ended by a zero byte, on its descriptors 3 and 4."""

    def __init__(self) -> None:
        self._last_id = 0
        self._session: str | None = None
        self._buffer = b""
        self.complaints: list[str] = []
        """What pages logged as errors: exceptions, refused scripts, policies they broke."""

    def __enter__(self) -> Self:
        command = shutil.which("chromium")
        assert command, "chromium is missing; ./scripts/test installs it"
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The shell puts the pipes where Chromium looks for them: subprocess alone cannot.
        # High numbers first: one of the pipes may itself be 3 or 4.
        plumbing = f'exec 8<&{to_browser} 9>&{from_browser}; exec 3<&8 4>&9; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", plumbing, "bash", command, *_FLAGS, f"--user-data-dir={self._profile.name}"],
            pass_fds=[to_browser, from_browser],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for room in ("Page", "Runtime", "Log"):
                self.send(f"{room}.enable")
            self.send("Emulation.setScrollbarsHidden", hidden=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._write)
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        os.close(self._read)
        self._profile.cleanup()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and wait for what it returns."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._last_id:
                assert "error" not in reply, f"{method}: {reply.get('error')}"
                result: dict[str, Any] = reply["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], PATIENCE_S)
            assert ready, "the browser says nothing"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser is gone"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"].get("exception", parameters)))
        entry = parameters.get("entry", {})
        # An answer with an error status is logged too, and is what some tests ask for.
        if message.get("method") == "Log.entryAdded" and entry["level"] == "error" and entry["source"] != "network":
            self.complaints.append(entry["text"])

    # ------------------------------------------------------------------ looking

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is waited for."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait_for(self, condition: str) -> Any:
        """The value of an expression, once it is something."""
        script = f"""new Promise((resolve, reject) => {{
            const started = performance.now();
            const look = () => {{
                const found = {condition};
                if (found) resolve(found);
                else if (performance.now() - started > {PATIENCE_S * 900}) reject(new Error("waited in vain"));
                else setTimeout(look, 20);
            }};
            look();
        }})"""
        return self.run(script)

    def find(self, selector: str) -> None:
        """Wait until there is such an element."""
        self.wait_for(f"document.querySelector({json.dumps(selector)}) !== null")

    def value(self, selector: str) -> str:
        """What is in a control."""
        self.find(selector)
        return str(self.run(f"document.querySelector({json.dumps(selector)}).value"))

    def is_seen(self, selector: str) -> bool:
        """Whether an element takes part in what a person sees."""
        return bool(self.run(f"document.querySelector({json.dumps(selector)})?.checkVisibility()"))

    def text(self, selector: str) -> str:
        """What a person reads in an element, once it is there."""
        return str(self.wait_for(f"document.querySelector({json.dumps(selector)})?.innerText"))

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Keep a screenshot of the whole page."""
        path.parent.mkdir(exist_ok=True)
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    # ------------------------------------------------------------------ doing

    def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Go to a page, on a screen of this size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url="about:blank")  # the same address with another hash would not be loaded anew
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    @contextmanager
    def before_pages(self, script: str) -> Iterator[None]:
        """Run this in every page before its own scripts."""
        made = self.send("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
        try:
            yield
        finally:
            self.send("Page.removeScriptToEvaluateOnNewDocument", identifier=made)

    def click(self, selector: str) -> None:
        """Click an element as the page's own script would, once it is there."""
        self.find(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, value: str) -> None:
        """Type a value into a control, in the place of what is there."""
        self.find(selector)
        self.run(f"""(() => {{
            const control = document.querySelector({json.dumps(selector)});
            control.focus();
            control.select?.();
        }})()""")
        self.send("Input.insertText", text=value)

    def upload(self, selector: str, *files: Path) -> None:
        """Choose files for a file input."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def drop(self, selector: str, file: Path) -> None:
        """Drag a file over an element and let it go there."""
        x, y = self._place(selector, 0.5, 0.5)
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.send("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def draw(self, selector: str, *strokes: list[tuple[float, float]]) -> None:
        """Press, move and release the mouse over an element; points are shares of its width and height."""
        for stroke in strokes:
            for number, (across, down) in enumerate(stroke):
                x, y = self._place(selector, across, down)
                kind = "mouseMoved" if number else "mousePressed"
                self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
            self.send("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def _place(self, selector: str, across: float, down: float) -> tuple[float, float]:
        box = self.run(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{ block: "nearest" }});
            const box = element.getBoundingClientRect();
            return [box.left, box.top, box.width, box.height];
        }})()""")
        return box[0] + across * box[2], box[1] + down * box[3]

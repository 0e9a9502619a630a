"""The same archives and the same calls, at TorchServe and at Timebound: do they get the same answers?

    python3 -m venv /tmp/ts && /tmp/ts/bin/pip install torchserve      # and a Java runtime, for its frontend
    .venv/bin/python -m benchmarks.clients.torchserve_beside --torchserve /tmp/ts/bin/torchserve

Takes half a minute. TorchServe borrows torch from this environment. Status and body of each answer are compared; what
a handler tells of its process is left out. Names of headers are sent as the handler asks for them: TorchServe finds no
others, Timebound does.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple

import httpx
from PIL import Image
from tests.live.serving import Serving
from tests.models import archives

PORT = 18480
_PATIENCE_S = 90.0


class Call(NamedTuple):
    """One call; `options` are httpx's."""

    method: str
    path: str
    options: dict[str, Any]

    def ask(self, http: httpx.Client) -> Any:
        """Send it; what must be the same of the answer."""
        return _said(http.request(self.method, self.path, **self.options))


def _call(method: str, path: str, **options: Any) -> Call:
    return Call(method, path, options)


def _picture(shade: int) -> bytes:
    sink = io.BytesIO()
    Image.new("L", (28, 28), shade).save(sink, "PNG")
    return sink.getvalue()


def _calls() -> Iterator[Call]:
    picture, digits, mood, custom = _picture(90), "/predictions/digits", "/predictions/mood", "/predictions/custom"
    for path in (digits, f"{digits}/2.0", "/models/digits/invoke", "/digits/predict"):
        yield _call("PUT", path, content=picture)
        yield _call("POST", path, content=picture)
        yield _call("POST", path, files={"data": ("a.png", picture)})
    text = {"Content-Type": "text/plain"}
    yield _call("POST", digits, content=base64.b64encode(picture), headers=text)
    for sentence in ("a great day", "an awful day", "a day", "Größe good"):
        yield _call("POST", mood, content=sentence.encode(), headers=text)
        yield _call("POST", mood, json={"text": sentence})
        yield _call("POST", mood, data={"data": sentence})
    yield _call("GET", mood)
    for what in ("", "raise", "memory", "prediction", "fewer", "tuple", "object", "teapot"):
        yield _call("POST", custom, data={"do": what})
    yield _call("POST", custom, content=b"x", headers={"X-Mine": "yes"})
    yield _call("POST", f"{custom}/1.0/deep/er", content=b"x")
    yield _call("POST", "/explanations/custom", content=b"x")
    yield _call("POST", "/models/custom/invoke?a=1&b=%C3%BC", content=b"x")
    yield _call("POST", f"{custom}?a=1", content=b"x")
    yield _call("POST", "/v1/models/custom:predict", json={"instances": [1]})
    yield _call("POST", custom, content=b"{", headers={"Content-Type": "application/json"})
    files = {"a": ("a.txt", b"text", "text/plain"), "j": ("j.json", b'{"b": 1}', "application/json")}
    yield _call("POST", custom, files=files, data={"plain": "1"})
    yield _call("POST", custom, content=b"")
    yield _call("POST", "/predictions/nobody", content=b"x")
    yield _call("GET", "/ping")


def _said(answer: httpx.Response) -> Any:
    """What must be the same: the status and the body, as JSON where it is that."""
    try:
        body: Any = answer.json()
    except ValueError:
        return answer.status_code, answer.content.decode("latin-1")
    if isinstance(body, dict):
        for place in (
            "live",
            "ready",
            "threads",
            "most",
            "pid",
            "init",
            "batch",
        ):  # ours says more, or it is of the process
            body.pop(place, None)
        if isinstance(body.get("headers"), dict):
            body["headers"].pop("url_path", None) if body["headers"].get("url_path") in ("", None) else None
            media = body["headers"].get("Content-Type") or ""
            body["headers"]["Content-Type"] = media.partition(";")[0]
    return answer.status_code, body


@contextmanager
def _torchserve(command: Path, store: Path, folder: Path) -> Iterator[str]:
    file = folder / "config.properties"
    names = zip(("inference", "management", "metrics"), range(PORT, PORT + 3), strict=True)
    file.write_text("".join(f"{name}_address=http://127.0.0.1:{port}\n" for name, port in names))
    words = ["--start", "--foreground", "--ncs", "--disable-token-auth", "--model-store", store, "--ts-config", file]
    models = [f"{entry.stem}={entry.name}" for entry in sorted(store.glob("*.mar"))]
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(torch.origin).parents[1]),
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
    }
    with (folder / "said").open("wb") as sink:
        process = subprocess.Popen(
            [command, *map(str, words), "--models", *models],
            stdout=sink, stderr=sink, env=environment, cwd=folder, start_new_session=True,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{PORT}"
        _await(url, [f"/predictions/{model.partition('=')[0]}" for model in models], folder / "said")
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, SIGKILL)
        process.wait()


def _await(url: str, paths: list[str], said: Path) -> None:
    """Until every model answers something that its handler said."""
    end = time.monotonic() + _PATIENCE_S
    for path in paths:
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(url + path, timeout=10).status_code != 404:
                    break
            if time.monotonic() > end:
                sys.exit(f"TorchServe does not answer; it said:\n{said.read_text()[-2000:]}")
            time.sleep(0.5)


def main() -> int:
    """Compare, and say what differs; the exit code is 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchserve", type=Path, required=True, help="the command of an installed TorchServe")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = folder / "store"
        store.mkdir()
        for pack in (archives.digits, archives.mood, archives.custom):
            pack(store)
        calls = list(_calls())
        with (
            _torchserve(chosen.torchserve.resolve(), store, folder) as url,
            httpx.Client(base_url=url, timeout=60) as http,
        ):
            theirs = [call.ask(http) for call in calls]
        with Serving(store, "--workers", "1", environment={"XDG_CACHE_HOME": name}) as serving:
            ours = [call.ask(serving.http) for call in calls]
    different = [
        {"call": f"{call.method} {call.path} {str(call.options)[:200]}", "torchserve": one, "timebound": other}
        for call, one, other in zip(calls, theirs, ours, strict=True)
        if one != other
    ]
    found = {"calls": len(calls), "same": len(calls) - len(different), "different": different}
    print(json.dumps(found, indent=None if chosen.json else 2))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

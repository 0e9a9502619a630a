"""What a class's own `redact` gives is all that the history keeps of a request, in JSON or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.serving import Serving, eventually

pytestmark = pytest.mark.live

MODELS_OF = """
import time
import timebound as tb

class Picture(tb.Model):
    keep_inputs = True
    accepts = "image/png"
    example = b"example"
    deadline = 5.0
    def infer(self, batch):
        return [{"bytes": len(each)} for each in batch]
    def redact(self, request):
        if request == b"wrong":
            raise ValueError("no picture")
        return None if request == b"private" else request[:4]

class Letter(tb.Model):
    keep_inputs = True
    example = {"text": "dear Ann"}
    deadline = 5.0
    class Request(tb.Struct):
        text: str
        age: int = 0
    def infer(self, batch):
        return ["read"] * len(batch)
    def redact(self, request):
        return {"text": request.text.replace("Ann", "..."), "age": request.age // 10 * 10}
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("redacted")
    (folder / "app.py").write_text(MODELS_OF)
    with Serving(folder / "app.py", "--workers", "1", "--history", folder / "kept") as serving:
        yield serving


def kept(serving: Serving, name: str) -> tuple[bytes | None, bytes | None]:
    """What the history has of the request of this id, once it is there: of what was sent, and of the answer."""
    (row,) = eventually(lambda: serving.operator.get(f"/v1/history?request={name}").json()["outcomes"], name)
    found = [serving.operator.get(f"/v1/history/{row['place']}/{which}") for which in ("input", "answer")]
    sent, answered = (each.content if each.status_code == 200 else None for each in found)
    return sent, answered


@pytest.mark.parametrize(
    ("sent", "left"),
    [
        (b"\x89PNG and a face", (b"\x89PNG", b'{"bytes":15}')),
        (b"private", (None, None)),
        (b"wrong", (None, None)),
        (b"x" * 1_000_001, (None, None)),
    ],
)
def test_of_a_raw_body_it_keeps_what_redact_gives(
    serving: Serving, sent: bytes, left: tuple[bytes | None, bytes | None]
) -> None:
    name = f"raw-{len(sent)}"
    serving.http.post("/predictions/picture", content=sent, headers={"X-Request-Id": name}).raise_for_status()
    assert kept(serving, name) == left


def test_of_json_it_keeps_what_redact_gives_and_that_can_be_sent_again(serving: Serving) -> None:
    body, name = {"text": "dear Ann", "age": 34}, {"X-Request-Id": "json"}
    serving.http.post("/predictions/letter", json=body, headers=name).raise_for_status()
    assert kept(serving, "json") == (b'{"text":"dear ...","age":30}', b'"read"')
    (row,) = serving.operator.get("/v1/history?request=json").json()["outcomes"]
    assert serving.operator.post(f"/v1/history/{row['place']}/again").json() == "read"


def test_many_at_once_are_all_told(serving: Serving) -> None:
    for number in range(100):
        headers = {"X-Request-Id": f"many-{number}"}
        serving.http.post("/predictions/letter", json={"text": f"{number} Ann"}, headers=headers).raise_for_status()
    assert kept(serving, "many-99")[0] == b'{"text":"99 ...","age":0}'
    assert kept(serving, "many-0")[0] == b'{"text":"0 ...","age":0}'


def test_a_redact_that_fails_on_the_example_ends_the_start(tmp_path: Path) -> None:
    from timebound.lab.load.launch import serving as started

    (tmp_path / "app.py").write_text(MODELS_OF.replace('b"example"', 'b"wrong"'))
    with pytest.raises(Exception, match=r"redact\(\) failed on the example"), started(tmp_path / "app.py", []):
        pass

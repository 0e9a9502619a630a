"""What the history kept is sent again: to the version that answered, as it came, and if that fails it is told why."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.serving import Serving, eventually

from timebound.cli import main

pytestmark = pytest.mark.live

MODELS_OF = """
import timebound as tb

class Raw(tb.Model):
    keep_inputs = True
    deadline = 5.0
    def infer(self, batch):
        return [tb.Reply(b"{word}", media="image/x-word") for each in batch]

class Whole(tb.Model):
    keep_inputs = True
    redact = ("email",)
    deadline = 5.0
    class Request(tb.Struct):
        email: str
    def infer(self, batch):
        return ["{word}"] * len(batch)
"""


def test_what_is_sent_again_goes_to_the_version_that_answered_as_it_came(tmp_path: Path) -> None:
    for version, word in (("1", "one"), ("2", "two")):
        folder = tmp_path / "models" / "odd" / version
        folder.mkdir(parents=True)
        (folder / "app.py").write_text(MODELS_OF.format(word=word))
    with Serving(tmp_path / "models", "--workers", "1", "--history", tmp_path / "kept") as serving:
        assert main(["traffic", "odd", "1=1", "2=1", "--url", serving.url]) == 0
        serving.http.post("/predictions/raw/1", content=b"\x89PNG\0\xff").raise_for_status()
        serving.http.post("/predictions/whole/1", json={"email": "a@example.org"}).raise_for_status()

        def place(model: str) -> str:
            found = f"/v1/history?model={model}"
            return str(eventually(lambda: serving.operator.get(found).json()["outcomes"], model)[0]["place"])

        again = serving.operator.post(f"/v1/history/{place('raw')}/again")
        assert (again.content, again.headers["content-type"]) == (b"one", "image/x-word")
        assert again.headers["timebound-version"] == "1"
        lacks = serving.operator.post(f"/v1/history/{place('whole')}/again")
        assert lacks.status_code == 422
        assert "redact" in lacks.json()["detail"]
        assert "(email)" in lacks.json()["detail"]
        assert serving.operator.post("/v1/history/20261118T200000-0001/1/again").status_code == 404

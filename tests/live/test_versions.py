"""Versions of a model side by side: shares, sticky by key, shadows, the way back, and changes of the folder."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.live.serving import Serving, eventually

from timebound import versions
from timebound.cli import main

pytestmark = pytest.mark.live

APP = """
import timebound as tb

class Word(tb.Model):
    deadline = 5.0
    key = "id"
    class Request(tb.Struct):
        id: str
        count: int = 1
    def infer(self, batch):
        return ["{word}"] * len(batch)
    def finish(self, output, request):
        if request.count < 0:
            raise tb.BadInput("is below zero", field="count")
        return output
"""


def write(folder: Path, version: int, word: str) -> None:
    place = folder / "word" / str(version)
    place.mkdir(parents=True)
    (place / "app.py").write_text(APP.format(word=word))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, 1, "one")
    write(tmp_path, 2, "two")
    return tmp_path


def ask(serving: Serving, name: str, path: str = "/predictions/word") -> str:
    answer = serving.http.post(path, json={"id": name})
    assert answer.status_code == 200, answer.text
    return str(answer.json())


def test_requests_are_divided_by_share_and_stay_with_their_version(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Serving(folder) as serving:
        assert ask(serving, "before") == "two", "the newest, unless told otherwise"
        assert main(["traffic", "word", "1=1", "2=1", "--url", serving.url]) == 0
        assert serving.operator.get("/v1/models/word/traffic").json()["split"] == {"1": 0.5, "2": 0.5}
        words = [ask(serving, f"k{number}") for number in range(60)]
        assert 10 < Counter(words)["one"] < 50
        assert ask(serving, "a", "/predictions/word/1") == "one"
        assert ask(serving, "b", "/predictions/word/2") == "two"
        unknown = serving.http.post("/predictions/words", json={"id": "c"}).json()
        assert unknown["detail"].endswith("this server has: word")
        # The same keys under other names of theirs: nothing is stored, and they draw the same version again.
        assert serving.operator.delete("/v1/results/word").json()["cleared"] > 0
        assert [ask(serving, f"k{number}") for number in range(60)] == words
        versions = {
            serving.http.post("/predictions/word", json={"id": n}).headers["timebound-version"] for n in "abcdefgh"
        }
        assert versions == {"1", "2"}
        # And back
        assert main(["rollback", "sentence", "--url", serving.url]) == 2
        told = "'sentence' has no versions to choose from (these have: word); put them at <model>/<version>/"
        assert told in capsys.readouterr().err
        assert main(["rollback", "word", "--url", serving.url]) == 0
        assert {ask(serving, f"after {number}") for number in range(10)} == {"two"}


COUNTER = """
import timebound as tb

class Word(tb.Model):
    deadline = 5.0
    class Request(tb.Struct):
        count: int
    def infer(self, batch):
        return [{answer} for _ in batch]
"""


def test_the_items_of_one_request_are_answered_by_one_version(tmp_path: Path) -> None:
    for version, answer in (("1", '{"a": 1}'), ("2", '{"a": 1, "b": 2}')):
        (tmp_path / "word" / version).mkdir(parents=True)
        (tmp_path / "word" / version / "app.py").write_text(COUNTER.replace("{answer}", answer))
    counts = {"name": "count", "datatype": "INT64", "shape": [8], "data": list(range(8))}
    with Serving(tmp_path) as serving:
        assert main(["traffic", "word", "1=1", "2=1", "--url", serving.url]) == 0

        def told(headers: Sequence[dict[str, str]]) -> list[tuple[str, int]]:
            path, body = "/v2/models/word/infer", {"inputs": [counts]}
            answers = [serving.http.post(path, json=body, headers=each) for each in headers]
            assert [answer.status_code for answer in answers] == [200] * len(headers), answers[-1].text
            return [(answer.json()["model_version"], len(answer.json()["outputs"])) for answer in answers]

        assert set(told([{}] * 40)) == {("1", 1), ("2", 2)}
        keys = [{"idempotency-key": f"k{number}"} for number in range(40)]
        keyed = told(keys)
        assert set(keyed) == {("1", 1), ("2", 2)}
        # A retry for which nothing is stored any more
        assert serving.operator.delete("/v1/results/word").json()["cleared"] > 0
        assert told(keys) == keyed


def marks(serving: Serving) -> list[tuple[str, str, str]]:
    """What the live page marks in its charts, the newest first, workers aside."""
    kept = serving.operator.get("/v1/live/past").json()["marks"]
    return [(one["kind"], one["model"], one["detail"]) for one in kept if not one["kind"].startswith("worker")]


def test_divisions_reloads_and_failed_reloads_are_marked_on_the_live_page(folder: Path) -> None:
    with Serving(folder) as serving:
        eventually(lambda: marks(serving) == [("model", "word", "2")], "its version")
        assert main(["traffic", "word", "1=1", "2=3", "--url", serving.url]) == 0
        eventually(lambda: ("model", "word", "1") in marks(serving), "the version that came")
        assert {("divided", "word", "1 25 %, 2 75 %"), ("reload", "", "word, word@1")} <= set(marks(serving))
        assert marks(serving).count(("model", "word", "2")) == 1, "it was served before"
        (folder / "word" / "2" / "app.py").write_text("1 / 0")
        assert serving.operator.post("/v1/reload").status_code == 409
        kind, _, why = marks(serving)[0]
        assert kind == "reload_failed"
        assert "ZeroDivisionError" in why


def test_each_rollback_goes_one_release_further_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, 3, "three")
    numbers = iter(range(10_000))
    with Serving(folder) as serving:

        def after(*command: str) -> str:
            assert main([*command, "--url", serving.url]) == 0
            return ask(serving, f"k{next(numbers)}")

        assert after("traffic", "word", "1=1") == "one"
        assert after("traffic", "word", "2=1") == "two"
        assert after("traffic", "word", "2=1") == "two", "no change that could be taken back"
        assert after("rollback", "word") == "one"
        assert after("rollback", "word") == "three", "as at the start"
        assert after("rollback", "word") == "two", "no change is known any more: the next older version"
        assert after("rollback", "word") == "one"
        assert main(["rollback", "word", "--url", serving.url]) == 2
        assert "word has nothing to go back to: version 1 is its oldest" in capsys.readouterr().err
        assert after("traffic", "word", "3=1") == "three"
        assert after("rollback", "word") == "one"


def test_a_rollback_passes_over_what_is_gone_and_reads_older_files(folder: Path) -> None:
    write(folder, 3, "three")
    word = folder / "word"
    versions.write(word, versions.Traffic({"1": 1.0}))
    for version in ("2", "3"):
        versions.write(word, versions.changed(word, versions.Division({version: 1.0})))
    shutil.rmtree(word / "2")
    assert versions.rolled_back(word) == versions.Traffic({"1": 1.0})
    (word / "traffic.json").write_text('{"split": {"3": 1}, "previous": {"1": 1}, "previous_shadow": ["3"]}')
    assert versions.rolled_back(word) == versions.Traffic({"1": 1.0}, ["3"])
    for number in range(50):
        versions.write(word, versions.changed(word, versions.Division({"1": number + 1.0, "3": 1.0})))
    assert len(versions.read(word).earlier) == 20


def test_versions_that_share_requests_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Serving(folder) as serving:
        assert main(["traffic", "word", "--compare", "--url", serving.url]) == 2, "there is one only"
        assert main(["traffic", "word", "1=1", "2=1", "--url", serving.url]) == 0
        versions = "/v1/live/versions"
        eventually(lambda: serving.operator.get(versions).json()["models"], "the division is known")
        for number in range(80):
            ask(serving, f"k{number}")
        (told,) = serving.operator.get(versions).json()["models"]
        assert sum(version["requests"] for version in told["versions"].values()) == 80
        assert all(version["in_time"]["value"] == 1.0 for version in told["versions"].values())
        labels = eventually(lambda: labels_of(serving), "answers were looked at")
        assert labels["1"][0][0] == "one"
        assert labels["2"][0][0] == "two"
        capsys.readouterr()
        assert main(["traffic", "word", "--compare", "--url", serving.url]) == 0
        assert "version 2 beside 1" in capsys.readouterr().out
        assert main(["traffic", "word", "1=1", "--compare", "--url", serving.url]) == 2


def labels_of(serving: Serving) -> dict[str, list[list[str]]]:
    """What each version answered, once both are known to have answered something."""
    (told,) = serving.operator.get("/v1/live/versions").json()["models"]
    found = {version: each["labels"] for version, each in told["versions"].items()}
    return found if all(found.values()) else {}


def test_a_shadow_is_compared_and_never_sent(folder: Path) -> None:
    with Serving(folder) as serving:
        assert main(["traffic", "word", "1=1", "--shadow", "2", "--url", serving.url]) == 0
        eventually(lambda: serving.operator.get("/v1/live/versions").json()["models"], "the division is known")
        assert {ask(serving, f"k{number}") for number in range(10)} == {"one"}
        line = 'timebound_shadow_answers_total{model="word",verdict="differs",version="2"}'
        eventually(lambda: line in serving.http.get("/metrics").text, "a difference")
        assert 'verdict="agrees"' not in serving.http.get("/metrics").text
        (told,) = serving.operator.get("/v1/live/versions").json()["models"]
        assert told["shares"] == {"1": 1.0}
        assert told["copies"]["2"]["same_label"]["value"] == 0.0
        # And the way back leads to it again
        assert main(["traffic", "word", "2=1", "--url", serving.url]) == 0
        assert main(["rollback", "word", "--url", serving.url]) == 0
        traffic = serving.operator.get("/v1/models/word/traffic").json()
        assert (traffic["split"], traffic["shadow"]) == ({"1": 1.0}, ["2"])


def test_the_division_outlives_a_restart(folder: Path) -> None:
    with Serving(folder) as serving:
        assert main(["traffic", "word", "1=1", "--url", serving.url]) == 0
    with Serving(folder) as serving:
        assert ask(serving, "k") == "one"


def test_a_version_that_cannot_be_loaded_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Serving(folder) as serving:
        assert main(["traffic", "word", "1=1", "--url", serving.url]) == 0
        write(folder, 3, "three")
        (folder / "word/3/app.py").write_text("raise ValueError('broken')")
        before = json.loads((folder / "word/traffic.json").read_text())
        assert main(["traffic", "word", "3=1", "--url", serving.url]) == 2
        assert "broken" in capsys.readouterr().err
        assert json.loads((folder / "word/traffic.json").read_text()) == before
        assert main(["traffic", "word", "7=1", "--url", serving.url]) == 2
        assert "has no version '7'; it has 1, 2, 3" in capsys.readouterr().err
        assert ask(serving, "k") == "one"


def test_a_new_version_in_a_watched_folder_is_served(folder: Path) -> None:
    with Serving(folder, "--watch") as serving:
        assert ask(serving, "before") == "two"
        write(folder, 3, "three")
        numbers = iter(range(10_000))
        eventually(lambda: ask(serving, f"k{next(numbers)}") == "three", "the new version")


def await_changes(serving: Serving, count: int) -> None:
    eventually(lambda: len(serving.lines("the target has changed")) == count, f"change {count} was seen")


NOT_UTF_8 = b'{"split": {"1": 1}, "shadow": ["\xff"]}'
BROKEN = [b"{", b"[" * 100_000, NOT_UTF_8, b'{"split": {"7": 1}}', b'{"split": {"1": 1e999}}']


def test_a_broken_division_is_told_and_does_not_end_the_watch(folder: Path) -> None:
    with Serving(folder, "--watch", "--workers", "1") as serving:
        for number, text in enumerate(BROKEN):
            (folder / "word/traffic.json").write_bytes(text)
            await_changes(serving, number + 1)
            assert ask(serving, f"meanwhile {number}") == "two"
        (folder / "word/traffic.json").write_text('{"split": {"1": 1}}')
        numbers = iter(range(10_000))
        eventually(lambda: ask(serving, f"k{next(numbers)}") == "one", "the division that can be read")
        assert "Traceback" not in serving.said
        assert len([line for line in serving.lines("") if line["level"] == "error"]) == len(BROKEN)


def test_nobody_there_to_reload_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reload", "--url", "http://127.0.0.1:9"]) == 1
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["os._exit(1)", "time.sleep(60)"])
def test_a_shadow_that_crashes_or_hangs_costs_one_worker_at_most(folder: Path, fault: str) -> None:
    bad = folder / "word/2/app.py"
    text = bad.read_text().replace("import timebound as tb", "import os, time\nimport timebound as tb")
    condition = 'if any(request.id.startswith("k") for request in batch): '
    bad.write_text(
        text.replace("        return [", f"        {condition}{fault}\n        return [").replace("5.0", "1.0")
    )
    (folder / "word/1/app.py").write_text((folder / "word/1/app.py").read_text().replace("5.0", "4.0"))
    with Serving(folder, "--workers", "2") as serving:
        assert main(["traffic", "word", "1=1", "--shadow", "2", "--url", serving.url]) == 0
        for number in range(40):
            assert ask(serving, f"k{number}") == "one"
        eventually(lambda: serving.lines("version 2 of word lost a worker"), "the end of the copies")
        assert serving.gauge("worker_deaths_total") == 1


def test_code_that_became_slower_is_not_taken_for_hung(tmp_path: Path) -> None:
    write(tmp_path, 1, "one")
    file = tmp_path / "word/1/app.py"
    with Serving(tmp_path, "--workers", "1") as serving:
        assert {ask(serving, f"fast {number}") for number in range(20)} == {"one"}
        slow = file.read_text().replace("import timebound", "import time\nimport timebound")
        file.write_text(slow.replace("        return [", "        time.sleep(0.8)\n        return ["))
        assert main(["reload", "--url", serving.url]) == 0
        assert {ask(serving, f"slow {number}") for number in range(6)} == {"one"}
        assert serving.gauge("worker_deaths_total") == 0


def test_a_version_that_is_gone_can_be_left_behind(folder: Path) -> None:
    with Serving(folder) as serving:
        assert main(["traffic", "word", "1=1", "2=1", "--url", serving.url]) == 0
        shutil.rmtree(folder / "word/2")
        assert main(["traffic", "word", "1=1", "--url", serving.url]) == 0
        assert {ask(serving, f"k{number}") for number in range(5)} == {"one"}


def test_an_answer_names_the_version_that_computed_it(folder: Path) -> None:
    with Serving(folder) as serving:
        assert main(["traffic", "word", "1=1", "2=1", "--url", serving.url]) == 0
        first = serving.http.post("/predictions/word", json={"id": "k"})
        again = serving.http.post("/predictions/word", json={"id": "k"})
        assert again.headers["timebound-source"] == "stored"
        assert again.headers["timebound-version"] == first.headers["timebound-version"]
        assert [ask(serving, "k", f"/predictions/word/{version}") for version in (1, 2)] == ["one", "two"]


def test_statistics_of_the_open_inference_protocol_are_of_each_version(folder: Path) -> None:
    with Serving(folder, "--workers", "1") as serving:

        def stats(version: str) -> Any:
            (told,) = serving.http.get(f"/v2/models/word/versions/{version}/stats").json()["model_stats"]
            return told

        assert main(["traffic", "word", "1=1", "2=1", "--url", serving.url]) == 0
        before = {version: stats(version)["inference_count"] for version in "12"}
        for version, count in (("1", 2), ("2", 4)):
            for number in range(count):
                ask(serving, f"{version}-{number}", f"/predictions/word/{version}")
            wrong = {"id": f"{version}-wrong", "count": -1}
            assert serving.http.post(f"/predictions/word/{version}", json=wrong).status_code == 422
        now_ms = time.time() * 1e3
        for version, count in (("1", 2), ("2", 4)):
            told = stats(version)
            times = told["inference_stats"]
            assert told["inference_count"] - before[version] == count + 1
            assert (times["success"]["count"], times["fail"]["count"]) == (count, 1)
            assert now_ms - 60_000 < told["last_inference"] <= now_ms + 1
            for stage in ("fail", "compute_input", "compute_infer", "compute_output"):
                assert times[stage]["ns"] > 0, stage
            assert times["compute_infer"]["count"] == told["execution_count"]

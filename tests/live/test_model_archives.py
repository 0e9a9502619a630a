"""Model archives as people have them, packed by torch-model-archiver and asked by clients that know nothing of us."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.live.gate import Gate
from tests.live.serving import Serving, eventually
from tests.models import archives
from tests.outside import absent

from timebound.admission.keys import hash_of

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    for pack in (archives.digits, archives.mood, archives.custom):
        pack(folder)
    return folder


@pytest.fixture(scope="module")
def mms_tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MMS's model-archiver; apart from TorchServe's, which has the same name inside."""
    folder = tmp_path_factory.mktemp("mms")
    wish = ["pip", "install", "-q", "--no-deps", "--disable-pip-version-check", "--target", str(folder)]
    ran = subprocess.run([sys.executable, "-m", *wish, "model-archiver==1.0.3"], capture_output=True, check=False)
    if ran.returncode:
        absent("model-archiver cannot be had from the package registry")
    return folder


@pytest.fixture(scope="module")
def served(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    cache = tmp_path_factory.mktemp("cache")
    with Serving(store, "--workers", "1", environment={"XDG_CACHE_HOME": str(cache)}) as serving:
        yield serving


def png(shade: int = 128) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.full((20, 20), shade, np.uint8)).save(sink, "PNG")
    return sink.getvalue()


def curl(*arguments: str) -> str:
    ran = subprocess.run(["curl", "-sS", "-m", "20", *arguments], capture_output=True, text=True, check=True)
    return ran.stdout


def do(served: Serving, what: str, **options: Any) -> httpx.Response:
    return served.http.post("/predictions/custom", data={"do": what}, **options)


def test_an_image_classifier_answers_every_way_that_its_clients_send_a_picture(served: Serving, tmp_path: Path) -> None:
    file = tmp_path / "digit.png"
    file.write_bytes(png())
    url = f"{served.url}/predictions/digits"
    answers = [
        curl(url, "-T", str(file)),
        curl(url, "-F", f"data=@{file}"),
        curl(url, "--data-binary", f"@{file}", "-H", "content-type: application/octet-stream"),
        curl(f"{url}/2.0", "-T", str(file)),
        curl(f"{served.url}/v1/models/digits:predict", "-T", str(file)),
        curl(f"{served.url}/models/digits/invoke", "-F", f"body=@{file}"),
        curl(f"{served.url}/digits/predict", "-F", f"body=@{file}"),
        curl(f"{served.url}/digits/2.0/predict", "-F", f"body=@{file}"),
        curl(f"{served.url}/invocations?model_name=digits", "-F", f"body=@{file}"),
        curl(f"{url}/", "-F", f"data=@{file}"),  # with -T curl would add the file's name
        curl(url, "-d", base64.b64encode(png()).decode(), "-H", "content-type: text/plain"),
    ]
    assert len(set(answers)) == 1
    assert len(json.loads(answers[0])) == 3


def test_a_text_handler_is_loaded_with_none_and_keeps_its_state(served: Serving) -> None:
    ask = served.http.post
    assert ask("/predictions/mood", content=b"a great day").text == "good"
    assert ask("/predictions/mood", json={"text": "an awful day"}).text == "bad"
    assert ask("/predictions/mood", data={"data": "bad bad"}).text == "bad"
    assert (
        served.http.put("/predictions/mood", content="a day", headers={"content-type": "text/plain"}).text == "neither"
    )
    assert served.http.get("/predictions/mood").text == "neither"


def test_each_answer_has_the_status_and_headers_that_its_handler_set(served: Serving) -> None:
    said = do(served, "teapot")
    assert (said.status_code, said.text) == (418, "short and stout")
    assert (said.headers["content-type"], said.headers["x-leaf"]) == ("text/x-tea", "green")
    split = do(served, "split")
    assert (split.content, "x-worse" in split.headers) == (b"\0bytes", False)


@pytest.mark.parametrize(
    ("what", "status", "message"),
    [
        ("raise", 503, "Prediction failed"),
        ("memory", 507, "Out of resources"),
        ("prediction", 422, "not that one"),
        ("fewer", 503, "number of batch response mismatched"),
        ("tuple", 503, "Invalid model predict output"),
        ("object", 503, "Unsupported model output data type."),
    ],
)
def test_each_failure_is_told_as_its_clients_know_it(served: Serving, what: str, status: int, message: str) -> None:
    said = do(served, what)
    assert said.status_code == status
    assert said.json() == {"code": status, "type": "InternalServerException", "message": message}


@pytest.mark.parametrize(
    ("asked", "status", "kind", "message"),
    [
        ("POST /predictions/nobody", 404, "ModelNotFoundException", "Model not found: nobody"),
        (
            *("POST /predictions/mood/9.0", 404, "ModelVersionNotFoundException"),
            "Model version: 9.0 does not exist for model: mood",
        ),
        ("PUT /explanations/nobody/1", 404, "ModelNotFoundException", "Model not found: nobody"),
        ("POST /invocations", 400, "BadRequestException", "Parameter model_name is required."),
        ("POST /invocations?model_name=nobody", 404, "ModelNotFoundException", "Model not found: nobody"),
        ("DELETE /predictions/mood", 405, "MethodNotAllowedException", "send a POST or GET or PUT"),
        ("DELETE /mood/predict", 405, "MethodNotAllowedException", "send a POST or GET or PUT"),
        ("PATCH /models/mood", 405, "MethodNotAllowedException", "PATCH is not taken here"),
    ],
)
def test_what_is_not_there_is_told_as_its_clients_know_it(
    served: Serving, asked: str, status: int, kind: str, message: str
) -> None:
    said = served.http.request(*asked.split(), content=b"x")
    assert said.json() == {"code": status, "type": kind, "message": message}
    assert (said.status_code, said.headers["content-type"]) == (status, "application/json")


def test_the_rest_of_the_path_headers_and_the_query_reach_the_handler(served: Serving) -> None:
    ask = served.http.post
    seen = ask("/predictions/custom/1.0/deep/er?x=1", content=b"b", headers={"x-mine": "yes"}).json()
    assert seen["headers"] == {"X-Mine": "yes", "explain": "False", "url_path": "deep/er", "Content-Type": None}
    assert seen["row"] == {"body": ["bytearray", "bytearray(b'b')"]}
    for path in ("/explanations/custom", "/v1/models/custom:explain"):
        assert ask(path, content=b"b").json()["headers"]["explain"] == "True"
    seen = ask("/models/custom/invoke?q=%C3%BC", content=b"b").json()
    assert seen["row"]["q"] == ["bytearray", str(bytearray("ü".encode()))]
    assert ask("/predictions/custom/2.0", content=b"b").status_code == 404
    assert ask("/predictions/custom/1.0", content=b"b").json()["greeting"] == "hello"


def test_a_handler_gets_batches_of_strangers_and_is_never_in_two_threads(
    store: Path, tmp_path: Path, gate: Gate
) -> None:
    arguments = (store / "custom.mar", "--workers", "1")
    with Serving(*arguments, environment={"XDG_CACHE_HOME": str(tmp_path)}) as serving, ThreadPoolExecutor(17) as many:

        def ask(**fields: str) -> Future[httpx.Response]:
            return many.submit(serving.http.post, "/predictions/custom", data=fields)

        held = ask(gate=str(gate.path))
        eventually(lambda: serving.is_holding(running=1), "the first request in the handler")
        others = [ask(do=("", "teapot")[place % 2]) for place in range(16)]
        eventually(lambda: serving.is_holding(running=1, queued=16), "all others in the queue")
        gate.open()
        answers = [other.result() for other in others]
        seen = [held.result().json()] + [answer.json() for answer in answers[::2]]
    # Each answer has the status and the headers that were set for it, whoever was in its batch
    assert [answer.status_code for answer in answers] == [200, 418] * 8
    assert [answer.headers.get("x-leaf") for answer in answers] == [None, "green"] * 8
    assert max(int(answer.headers["timebound-batch"]) for answer in answers if answer.status_code == 418) > 1
    assert max(each["batch"] for each in seen) > 1
    assert {(each["init"], each["threads"], each["most"], each["is_beside"]) for each in seen} == {(1, 1, 1, True)}


def test_a_key_is_asked_once_whatever_headers_the_retry_has(served: Serving) -> None:
    ask, key = served.http.post, {"idempotency-key": "once"}
    first = ask("/predictions/mood", content=b"a great day", headers=key)
    again = ask("/predictions/mood", content=b"a great day", headers={**key, "user-agent": "another", "date": "later"})
    assert (first.headers["timebound-source"], again.headers["timebound-source"]) == ("computed", "stored")
    assert first.text == again.text
    reused = ask("/predictions/mood", content=b"a bad day", headers=key)
    assert (reused.status_code, reused.json()["type"]) == (422, "BadRequestException")


def test_a_deadline_ends_in_the_fallback_of_the_archive(served: Serving) -> None:
    said = do(served, "slow", headers={"timebound-timeout-ms": "300"})
    assert (said.headers["timebound-quality"], said.json()) == ("fallback", {"guess": ["do"]})


def test_other_protocols_ask_the_same_handler(served: Serving) -> None:
    tensors = {"inputs": [{"name": "body", "shape": [2], "datatype": "BYTES", "data": ["great", "awful"]}]}
    said = served.http.post("/v2/models/mood/infer", json=tensors).json()
    assert said["outputs"][0]["data"] == ["good", "bad"]


def test_the_numbers_of_a_handler_are_in_the_metrics(served: Serving) -> None:
    do(served, "teapot")

    def told() -> bool:
        text = served.http.get("/metrics").text
        return (
            'timebound_handler_counts_total{model="custom",name="Calls"}' in text
            and 'timebound_handler_values_sum{model="custom",name="HandleTime",unit="ms"}' in text
        )

    eventually(told, "the handler's own metrics")


def test_ab_finds_every_answer_good(served: Serving, tmp_path: Path) -> None:
    if shutil.which("ab") is None:
        absent("apache2-utils is not installed")
    file = tmp_path / "digit.png"
    file.write_bytes(png())
    url = f"{served.url}/predictions/digits"
    ran = subprocess.run(
        ["ab", "-k", "-q", "-n", "300", "-c", "8", "-p", str(file), "-T", "application/octet-stream", url],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "Failed requests:        0" in ran.stdout
    assert "Complete requests:      300" in ran.stdout
    assert "Non-2xx" not in ran.stdout


def test_archives_that_mms_packed_in_each_of_its_formats_answer_the_same(mms_tool: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for form, end in (("default", ".mar"), ("tgz", ".tar.gz"), ("no-archive", "")):
        out = tmp_path / form
        out.mkdir()
        arguments = [
            "--model-path",
            str(archives.HANDLERS / "mood"),
            "--handler",
            "model_service:handle",
            "--archive-format",
        ]
        archives.pack(out, "mood", *arguments, form, tool=mms_tool)
        manifest = json.loads((out / "mood" / "MAR-INF" / "MANIFEST.json").read_text()) if not end else {}
        (out / f"mood{end}").rename(store / f"{form}{end}")
    assert manifest["model"]["handler"] == "model_service:handle"
    models = [f"{form}={form}{end}" for form, end in (("default", ".mar"), ("tgz", ".tar.gz"), ("no-archive", ""))]
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    serving = Serving(
        "torchserve", "--model-store", store, "--workers", "1", "--models", *models, environment=environment
    )
    with serving:
        answers = [
            serving.http.post(f"/predictions/{form}", content=b"a great day").text
            for form in ("default", "tgz", "no-archive")
        ]
    assert answers == ["good"] * 3


def test_what_is_ignored_is_told_at_start(served: Serving) -> None:
    told = [line for line in served.lines("custom: ") if "ignored" in line["message"]]
    assert {each["message"].split(" in ")[0] for each in told} == {"custom: minWorkers", "custom: maxBatchDelay"}


def test_an_archive_that_cannot_be_served_is_told_in_one_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.mar", "w") as archive:
        archive.writestr("../escaped", "x")
    serving = Serving(tmp_path / "bad.mar")
    with pytest.raises(AssertionError), serving:
        pass
    assert "bad.mar is not unpacked: '../escaped' is no path inside a folder" in serving.said
    assert not list(tmp_path.parent.glob("**/escaped"))


def test_a_key_of_the_server_is_needed_and_what_is_there_is_not_told_without_one(store: Path, tmp_path: Path) -> None:
    keys, key = tmp_path / "keys.toml", "tb_a_key_for_this_test_and_nothing_else"
    keys.write_text(f'[app]\nhash = "{hash_of(key.encode())}"\n')
    arguments = (store / "mood.mar", "--workers", "1", "--keys", keys)
    with Serving(*arguments, environment={"XDG_CACHE_HOME": str(tmp_path)}) as serving:
        for path in ("/predictions/mood", "/predictions/nobody", "/models/mood/invoke", "/models/nobody/invoke"):
            assert serving.http.post(path, content=b"good").status_code == 401, path
            assert serving.http.put(path, content=b"good").status_code == 401, path
        assert serving.http.get("/models").status_code == 403
        assert serving.http.get("/ping").status_code == 200
        said = serving.http.put("/predictions/mood", content=b"good", headers={"x-api-key": key})
        assert said.text == "good"

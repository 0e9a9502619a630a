"""API keys, TLS, CORS: who is let in, to what, and how often."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import httpx
import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, clean_environment, eventually
from tests.live.wire import get, post

from timebound.admission.keys import hash_of
from timebound.cli import main

pytestmark = pytest.mark.live

TOKEN = "operators-only"


def make_key(name: str) -> tuple[str, str]:
    """A key and the lines for the keys file, from the command."""
    command = [sys.executable, "-m", "timebound.cli", "keys", "new", name]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment())
    key = made.stderr.split()[-1]
    assert key not in made.stdout
    assert hash_of(key.encode()) in made.stdout
    return key, made.stdout


class Guarded(Serving):
    """A server with keys for `shop`, `lab` (slow) and `toy` (another model only)."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        self.file = folder / "keys.toml"
        self.shop, shop = make_key("shop")
        self.lab, lab = make_key("lab")
        self.toy, toy = make_key("toy")
        self.file.write_text(f'{shop}{lab}rate = 0.01\nburst = 2\n{toy}models = ["toy"]\n')
        super().__init__(*arguments, "--keys", self.file)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("access")
    with Guarded(folder, MODELS / "echo.py", "--workers", "1", "--admin-token", TOKEN, "--access-log") as serving:
        yield serving
        for key in (serving.shop, serving.lab, TOKEN):
            assert key not in serving.said
        assert "Traceback" not in serving.said


def test_without_a_known_key_a_model_is_not_asked(serving: Guarded) -> None:
    for headers in ({}, {"X-API-Key": "tb_wrong"}, {"Authorization": "Bearer tb_wrong"}, {"Authorization": TOKEN}):
        answer = serving.http.post("/inference", json={"value": 1}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_body_without_a_key_is_not_even_read(serving: Guarded) -> None:
    with serving.wire() as wire:
        wire.send(b"POST /inference HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n")
        assert wire.read().status == 401


def test_a_key_opens_in_either_header(serving: Guarded) -> None:
    for headers in ({"X-API-Key": serving.shop}, {"Authorization": f"bearer {serving.shop}"}):
        answer = serving.http.post("/inference", json={"value": 1}, headers=headers)
        assert answer.status_code == 200
        assert serving.http.get("/v1/models", headers=headers).status_code == 200


def test_a_pipelined_request_needs_a_key_too(serving: Guarded) -> None:
    key = f"X-API-Key: {serving.shop}"
    with serving.wire() as wire:
        wire.send(
            post("/inference", {"value": 1}, key),
            post("/inference", {"value": 2}),
            post("/inference", {"value": 3}, key),
        )
        assert [wire.read().status for _ in range(3)] == [200, 401, 200]


def test_probes_and_pages_are_open_and_nothing_else(serving: Guarded) -> None:
    for path in ("/livez", "/readyz", "/", "/docs", "/ui/app.js"):
        assert serving.http.get(path).status_code == 200, path
    for path in (
        "/metrics",
        "/v1/models",
        "/openapi.json",
        "/v1/models/echo/samples",
        "/nowhere",
        "/inference",
        "/ui/../v1/models",
    ):
        assert serving.http.get(path).status_code == 401, path
    with serving.wire() as wire:
        for path in ("/ui/%2e%2e/v1/models", "//v1/models", "/livez/../v1/models"):
            wire.send(get(path))
            assert wire.read().status in (401, 404), path
    operator = {"Authorization": f"Bearer {TOKEN}"}
    assert serving.http.get("/metrics", headers=operator).status_code == 200


def test_the_bench_asks_with_its_key_what_it_can_ask(serving: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", serving.url, "--requests", "5", "--concurrency", "1"]
    assert main([*arguments, "-H", f"X-API-Key: {serving.shop}"]) == 0
    assert main(arguments) == 2
    assert "wants an API key" in capsys.readouterr().err


def test_a_key_for_another_model_is_403(serving: Guarded) -> None:
    answer = serving.http.post("/inference", json={"value": 1}, headers={"X-API-Key": serving.toy})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_key_over_its_rate_is_429_with_the_time_to_come_back(serving: Guarded) -> None:
    answers = [serving.http.post("/inference", json={"value": 1}, headers={"X-API-Key": serving.lab}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["code"] == "rate_limited"
    assert 90 <= int(answers[2].headers["retry-after"]) <= 100
    assert serving.http.post("/inference", json={"value": 1}).status_code == 401
    metrics = serving.http.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text
    assert 'timebound_client_requests_total{client="lab",code="rate_limited"} 1.0' in metrics
    assert 'timebound_turned_away_total{code="unauthorized"}' in metrics


def test_one_clients_key_does_not_reach_anothers_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.toml"
    (shop, shops), (lab, labs) = make_key("shop"), make_key("lab")
    file.write_text(shops + labs)
    with Serving(MODELS / "echo.py", "--workers", "1", "--keys", file, "--admin-token", TOKEN) as serving:

        def ask(key: str, value: int) -> httpx.Response:
            return serving.http.post("/inference", json={"value": value, "id": "k1"}, headers={"X-API-Key": key})

        def read(key: str) -> httpx.Response:
            return serving.http.get("/v1/results/echo/k1", headers={"X-API-Key": key})

        assert ask(shop, 1).json() == {"value": 1, "id": "k1"}
        assert read(lab).status_code == 404
        second = ask(lab, 2)  # the same key with another body: for another client no conflict
        assert (second.status_code, second.headers["timebound-source"]) == (200, "computed")
        assert (read(shop).json()["value"], read(lab).json()["value"]) == (1, 2)
        assert ask(shop, 1).headers["timebound-source"] == "stored"
        assert main(["results", "get", "echo", "k1", "--url", serving.url, "--api-key", lab, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["body"] == {"value": 2, "id": "k1"}
        monkeypatch.setenv("TIMEBOUND_API_KEY", shop)
        assert main(["results", "get", "echo", "k1", "--url", serving.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["body"] == {"value": 1, "id": "k1"}
        for path in ("/v1/results/echo/shop:k1", "/v1/results/echo/k1", "/v1/results"):
            assert serving.http.get(path).status_code == 401, path
        assert serving.http.get("/v1/results/echo/shop:k1", headers={"X-API-Key": lab}).status_code == 404
        operator = {"Authorization": f"Bearer {TOKEN}"}
        assert serving.http.get("/v1/results/echo/shop:k1", headers=operator).json()["value"] == 1
        listed = serving.http.get("/v1/results", headers=operator).json()["results"]
        assert sorted(entry["key"] for entry in listed) == ["lab:k1", "shop:k1"]


TWO = """
import timebound as tb

class Shop(tb.Model):
    path = "/shop-path"
    samples = [{"title": "of the shop", "body": {"secret_shop_field": 1}}]
    class Request(tb.Struct):
        secret_shop_field: int
    def infer(self, batch):
        return [1 for _ in batch]

class Toy(tb.Model):
    path = "/toy-path"
    samples = [{"title": "of the toy", "body": {"toy_field": 1}}]
    class Request(tb.Struct):
        toy_field: int
    def infer(self, batch):
        return [1 for _ in batch]
"""


FURTHER = (
    "/live", "/history", "/v1/live", "/v1/live/past", "/v1/live/decisions", "/v1/live/requests/x", "/v1/history",
    "/v1/feedback/nope/key", "/v1/results/nope/key", "/ping", "/models", "/models/nope", "/models/nope/invoke",
    "/invocations", "/explanations/nope", "/api-description", "/v2", "/v2/health/ready", "/v2/repository/index",
    "/v2/models/nope", "/v2/models/nope/infer", "/v2/models/stats", "/v1/models/nope:predict",
    "/predictions/nope:batch",
)  # fmt: skip


def test_who_has_no_key_learns_no_name_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(TWO)
    paths = ["/", "/docs", "/livez", "/readyz", "/ui/nope", "/ui/", "/ui/%2e%2e/v1/models", "/ui/../openapi.json"]
    paths += ["/openapi.json", "/v1/models", "/metrics", "/nope", "/predictions/nope", "/v1/models/nope/samples"]
    paths += FURTHER
    with Guarded(tmp_path, tmp_path / "app.py", "--workers", "1") as serving:
        for method, path in product(("GET", "POST", "HEAD", "PUT", "OPTIONS"), paths):
            with serving.wire() as wire:
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                wire.send(head.encode())
                said = wire.read_to_end().lower()
            assert said.startswith(b"http/1.1 "), path
            assert not any(word in said for word in (b"shop", b"toy", b"secret")), (method, path)


def test_who_has_a_key_for_one_model_sees_only_that(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(TWO)
    with Guarded(tmp_path, tmp_path / "app.py", "--workers", "1") as serving:
        toys, shops = {"X-API-Key": serving.toy}, {"X-API-Key": serving.shop}
        assert serving.http.post("/shop-path", json={"secret_shop_field": 1}, headers=shops).status_code == 200
        assert serving.http.post("/toy-path", json={"toy_field": 1}, headers=toys).status_code == 200
        # What a key for the toy sees of the server has not a word of the shop, be it model or client
        paths = [
            "/v1/models",
            "/openapi.json",
            "/metrics",
            "/ui/nope",
            "/nope",
            "/predictions/nope",
            "/v1/models/x/samples",
            *FURTHER,
        ]
        for path in paths:
            seen = serving.http.get(path, headers=toys)
            assert "shop" not in seen.text.replace(path, ""), path
        names = [model["name"] for model in serving.http.get("/v1/models", headers=toys).json()["models"]]
        assert names == ["toy"]
        assert "/toy-path" in serving.http.get("/openapi.json", headers=toys).json()["paths"]
        metrics = serving.http.get("/metrics", headers=toys).text
        assert 'timebound_client_requests_total{client="toy",code="ok"} 1.0' in metrics
        assert 'timebound_request_seconds_count{model="toy",version="1"} 1.0' in metrics
        assert serving.http.get("/v1/models/toy/samples", headers=toys).status_code == 200
        # And asked for by name or path, a model of others is as good as none
        for name in ("shop", "nope"):
            for path in (f"/v1/models/{name}/samples", f"/predictions/{name}"):
                answer = serving.http.get(path, headers=toys)
                assert answer.status_code in (403, 404), path
            told = serving.http.get(f"/v1/models/{name}/samples", headers=toys).json()
            assert (told["code"], told["detail"]) == ("forbidden", "the key of 'toy' is not for this model")
        assert serving.http.get("/shop-path", headers=toys).status_code == 404
        assert "'shop'" not in serving.http.post("/shop-path", json={}, headers=toys).text
        # A key for every model sees every model, but no other client
        assert len(serving.http.get("/v1/models", headers=shops).json()["models"]) == 2
        metrics = serving.http.get("/metrics", headers=shops).text
        assert 'model="toy"' in metrics
        assert 'client="toy"' not in metrics
        # The operator sees all
        assert 'client="toy"' in serving.operator.get("/metrics").text
        assert len(serving.operator.get("/v1/models").json()["models"]) == 2
        assert "/shop-path" in serving.operator.get("/ui/nope").text


def test_a_key_taken_out_of_the_file_is_refused_after_a_reload(tmp_path: Path) -> None:
    with Guarded(tmp_path, MODELS / "echo.py", "--workers", "1") as serving:
        assert serving.http.get("/v1/models", headers={"X-API-Key": serving.shop}).status_code == 200
        local = serving.http.post("/v1/reload")  # with keys there is no operator without a token
        assert (local.status_code, local.json()["code"]) == (403, "forbidden")
        new, lines = make_key("new")
        serving.file.write_text(lines)
        serving.signal(signal.SIGHUP)
        serving.wait_for_line("reloaded")
        assert serving.http.get("/v1/models", headers={"X-API-Key": serving.shop}).status_code == 401
        assert serving.http.get("/v1/models", headers={"X-API-Key": new}).status_code == 200


def test_a_key_has_only_so_many_requests_in_work(tmp_path: Path, gate: Gate) -> None:
    key, lines = make_key("shop")
    (tmp_path / "keys.toml").write_text(f"{lines}concurrent = 1\n")
    arguments = ("--workers", "1", "--keys", str(tmp_path / "keys.toml"), "--open-metrics")
    with Serving(MODELS / "waits.py", *arguments) as serving, serving.wire() as wire, serving.wire() as other:
        header = f"X-API-Key: {key}"
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}, header))
        eventually(lambda: serving.is_holding(running=1), "the request in the worker")
        other.send(post("/wait", {"value": 2}, header))
        answer = other.read()
        assert (answer.status, answer.json()["code"]) == (429, "client_busy")
        gate.open()
        assert wire.read().status == 200
        other.send(post("/wait", {"value": 2}, header))
        assert other.read().status == 200


def test_https_is_spoken_with_a_certificate(tmp_path: Path) -> None:
    files = [tmp_path / "cert.pem", tmp_path / "key.pem"]
    kind = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    command = ["openssl", *kind.split(), "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    with Serving(MODELS / "echo.py", "--workers", "1", "--tls-cert", files[0], "--tls-key", files[1]) as serving:
        assert serving.wait_for_line("ready")["at"].startswith("https://")
        url = f"https://127.0.0.1:{serving.port}"
        with httpx.Client(verify=False, trust_env=False) as client:
            assert client.post(f"{url}/inference", json={"value": 7}).json()["value"] == 7
            assert client.post(f"{url}/inference", content=b"x" * 11_000_000).status_code == 413
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        with httpx.Client(verify=old, trust_env=False) as client:
            assert client.get(f"{url}/livez").status_code == 200
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with httpx.Client(verify=old, trust_env=False) as client, pytest.raises(httpx.ConnectError):
            client.get(f"{url}/livez")


def test_pages_elsewhere_may_read_answers_only_if_named() -> None:
    page, other = {"Origin": "https://app.example"}, {"Origin": "https://evil.example"}
    with Serving(MODELS / "echo.py", "--workers", "1") as serving:
        answer = serving.http.post("/inference", json={"value": 1}, headers=page)
        assert "access-control-allow-origin" not in answer.headers
        assert serving.http.options("/inference", headers=page).status_code == 405
    with Serving(MODELS / "echo.py", "--workers", "1", "--cors-origins", "https://app.example") as serving:
        asks = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
        asked = serving.http.options("/inference", headers=asks)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (204, "https://app.example")
        assert asked.headers["access-control-allow-headers"] == "x-api-key"
        for path, body in (("/inference", {"value": 1}), ("/inference", {}), ("/nowhere", {})):
            answer = serving.http.post(path, json=body, headers=page)
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
            assert answer.headers["vary"] == "origin"
            assert "access-control-allow-origin" not in serving.http.post(path, json=body, headers=other).headers
        assert (
            "access-control-allow-origin" not in serving.http.options("/inference", headers={**asks, **other}).headers
        )

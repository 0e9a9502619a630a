"""What the OpenAPI document gives as examples is answered: each is sent to its path as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.serving import MODELS, Serving
from tests.models.onnx_files import save_doubler, save_sum_and_difference

pytestmark = pytest.mark.live


@pytest.mark.parametrize("kind", ["classes", "files"])
def test_every_example_is_answered_in_every_protocol(kind: str, tmp_path: Path) -> None:
    target = MODELS / "tensors.py"
    if kind == "files":
        target = tmp_path
        save_doubler(tmp_path / "twice" / "3" / "model.onnx")
        save_sum_and_difference(tmp_path / "both" / "1" / "model.onnx")
    with Serving(target, "--workers", "1", "--deadline", "20") as serving:
        paths = serving.http.get("/openapi.json").json()["paths"]
        sent = []
        for path, item in paths.items():
            media = item.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
            if "example" in media and path.startswith(
                ("/v1/models", "/v2/", "/models/", "/invocations", "/predictions")
            ):
                if "named" in path:  # its key belongs to one protocol at a time
                    serving.operator.delete("/v1/results/named").raise_for_status()
                answer = serving.http.post(path, json=media["example"])
                assert answer.status_code == 200, (path, media["example"], answer.text)
                sent.append(path)
    wanted = ["both", "twice"] if kind == "files" else ["kinds", "named", "slow"]
    for name in wanted:
        assert f"/v2/models/{name}/infer" in sent
        assert kind == "files" or {f"/v1/models/{name}:predict", f"/models/{name}/invoke"} <= set(sent)

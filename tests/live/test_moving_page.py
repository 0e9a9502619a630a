"""The classes on the page for those who come from other servers do what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tests.live.serving import Serving

pytestmark = pytest.mark.live

PAGE = (Path(__file__).parents[2] / "docs" / "moving.md").read_text()
PROGRAMS = {text.partition("\n")[0].removeprefix("# "): text for text in re.findall(r"```python\n(.*?)```", PAGE, re.S)}


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("moved")
    (folder / "app.py").write_text("\n".join(PROGRAMS.values()))
    with Serving(folder / "app.py", "--workers", "1", "--deadline", "20") as serving:
        yield serving
        assert "Traceback" not in serving.said


def test_a_class_in_place_of_tritons_python_backend_is_asked_by_its_client(moved: Serving) -> None:
    def given(name: str, array: Any) -> Any:
        tensor = triton.InferInput(name, list(array.shape), "FP64")
        tensor.set_data_from_numpy(array)
        return tensor

    client = triton.InferenceServerClient(f"127.0.0.1:{moved.port}")
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    got = client.infer("scale", [given("values", rows), given("factor", np.array([[3.0], [1.0]]))])
    np.testing.assert_array_equal(got.as_numpy("scaled"), [[4.0, 7.0], [4.0, 5.0]])


def test_a_class_in_place_of_a_litapi_answers_what_is_shown(moved: Serving) -> None:
    asked, said = re.findall(r"/predict --json '(.*?)'\n(.*)", PAGE)[0]
    assert moved.http.post("/predict", content=asked, headers={"content-type": "application/json"}).text == said

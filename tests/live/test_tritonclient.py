"""An outside client of the Open Inference Protocol, as it is: tritonclient over HTTP, in both its kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tests.live.serving import MODELS, Serving
from tests.models.onnx_files import FLOAT, INT64, STRING, UINT8, save_doubler, save_echo, save_sum_and_difference
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    save_doubler(folder / "twice" / "1" / "model.onnx")
    save_sum_and_difference(folder / "both" / "1" / "model.onnx")
    for name, kind in {"floats": FLOAT, "integers": INT64, "bytes": UINT8, "texts": STRING}.items():
        save_echo(folder / name / "1" / "model.onnx", kind, ("n", "w"))
    save_echo(folder / "halves" / "1" / "model.onnx", 10, ("n", "w"))
    with Serving(folder, "--workers", "1", "--deadline", "20") as serving:
        yield serving
        assert "Traceback" not in serving.said


@pytest.fixture(scope="module")
def classes() -> Iterator[Serving]:
    with Serving(MODELS / "tensors.py", "--workers", "1") as serving:
        yield serving
        assert "Traceback" not in serving.said


def client_of(serving: Serving) -> Any:
    return triton.InferenceServerClient(f"127.0.0.1:{serving.port}")


def given(name: str, array: Any, datatype: str, *, binary: bool = True, kind: Any = triton) -> Any:
    tensor = kind.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


ROWS = np.array([[1, 2, 3], [4, 5, 6.5]], np.float32)


def test_it_finds_a_server_that_lives_and_models_with_their_signatures(files: Serving) -> None:
    client = client_of(files)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("twice")
    assert client.is_model_ready("twice", "1")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["name"] == "timebound"
    told = client.get_model_metadata("twice")
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert told["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
    assert told["versions"] == ["1"]
    config = client.get_model_config("twice")
    assert config["max_batch_size"] > 1
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
    assert {row["name"] for row in client.get_model_repository_index()} >= {"twice", "both", "texts"}


@pytest.mark.parametrize("in_binary", [True, False])
@pytest.mark.parametrize("out_binary", [True, False])
def test_tensors_go_and_come_in_binary_and_as_json(files: Serving, in_binary: bool, out_binary: bool) -> None:
    outputs = [triton.InferRequestedOutput("y", binary_data=out_binary)]
    result = client_of(files).infer(
        "twice", [given("x", ROWS, "FP32", binary=in_binary)], outputs=outputs, request_id="r1"
    )
    np.testing.assert_array_equal(result.as_numpy("y"), ROWS * 2)
    told = result.get_response()
    assert (told["id"], told["model_name"], told["model_version"]) == ("r1", "twice", "1")
    assert ("data" in told["outputs"][0]) is not out_binary


def test_binary_and_json_mix_in_one_request(files: Serving) -> None:
    pair = np.array([[3, 4]], np.float32)
    result = client_of(files).infer(
        "both",
        [given("a", pair, "FP32", binary=False), given("b", pair, "FP32")],
        outputs=[triton.InferRequestedOutput("difference", binary_data=False), triton.InferRequestedOutput("sum")],
    )
    np.testing.assert_array_equal(result.as_numpy("sum"), pair * 2)
    np.testing.assert_array_equal(result.as_numpy("difference"), pair * 0)


@pytest.mark.parametrize("packing", ["gzip", "deflate"])
def test_bodies_are_packed_both_ways(files: Serving, packing: str) -> None:
    rows = np.tile(np.arange(3, dtype=np.float32), (250, 1))
    result = client_of(files).infer(
        "twice",
        [given("x", rows, "FP32")],
        request_compression_algorithm=packing,
        response_compression_algorithm=packing,
    )
    np.testing.assert_array_equal(result.as_numpy("y"), rows * 2)


@pytest.mark.parametrize(
    ("model", "datatype", "array"),
    [
        ("floats", "FP32", np.array([[np.nan, np.inf, -np.inf, 1.5]], np.float32)),
        ("halves", "FP16", np.array([[0.5, -2.0]], np.float16)),
        ("integers", "INT64", np.array([[2**62, -1]], np.int64)),
        ("bytes", "UINT8", np.array([[0, 255]], np.uint8)),
        ("texts", "BYTES", np.array([["勇", "", 'a"b']], np.object_)),
    ],
)
def test_datatypes_come_back_as_they_went(files: Serving, model: str, datatype: str, array: Any) -> None:
    for in_binary in (True, False) if datatype != "FP16" else (True,):
        result = client_of(files).infer(model, [given("x", array, datatype, binary=in_binary)])
        got = result.as_numpy("y")
        expected = np.array([[text.encode() for text in array[0]]]) if datatype == "BYTES" else array
        np.testing.assert_array_equal(np.array(got.tolist()), np.array(expected.tolist()))


def test_numbers_that_json_has_none_for_are_told_in_json(files: Serving) -> None:
    outputs = [triton.InferRequestedOutput("y", binary_data=False)]
    array = np.array([[np.nan, np.inf, -np.inf, 1.5]], np.float32)
    result = client_of(files).infer("floats", [given("x", array, "FP32")], outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("y"), array)


def test_bf16_is_taken_for_fp32(files: Serving) -> None:
    rows = np.array([[1.0, 2.0, -3.5]], np.float32)
    tensor = triton.InferInput("x", [1, 3], "BF16")
    tensor.set_data_from_numpy(rows.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(client_of(files).infer("twice", [tensor]).as_numpy("y"), rows * 2)


def test_the_highest_classes_are_told(files: Serving) -> None:
    outputs = [triton.InferRequestedOutput("y", class_count=2)]
    result = client_of(files).infer("twice", [given("x", ROWS, "FP32")], outputs=outputs)
    assert result.as_numpy("y").tolist() == [[b"6.000000:2", b"4.000000:1"], [b"13.000000:2", b"10.000000:1"]]


def test_a_class_takes_its_fields_as_inputs_and_parameters_besides(classes: Serving) -> None:
    texts = np.array(["a", "b"], np.object_)
    result = client_of(classes).infer(
        "kinds",
        [
            given("text", texts, "BYTES"),
            given("number", np.array([[1.5], [2.5]], np.float32), "FP32"),
            given("counts", np.array([[1, 2], [3, 4]], np.int32), "INT32"),
            given("flag", np.array([True, False]), "BOOL"),
            given("raw", np.array([b"\xff\x00", b""], np.object_), "BYTES"),
            given("more", np.array(['{"deep": [1]}', "null"], np.object_), "BYTES"),
        ],
        parameters={"temperature": 2.0, "unheard_of": 1},
    )
    assert result.as_numpy("text").tolist() == [b"A", b"B"]
    assert result.as_numpy("number").tolist() == [3.0, 5.0]
    assert result.as_numpy("counts").tolist() == [[1, 2], [3, 4]]
    assert result.as_numpy("flag").tolist() == [True, False]
    assert result.as_numpy("raw").tolist() == [b"\xff\x00", b""]
    assert result.as_numpy("more").tolist() == [b'{"deep":[1]}', b"null"]


@pytest.mark.parametrize("binary", [True, False])
def test_a_raw_model_takes_one_element_a_body(classes: Serving, binary: bool) -> None:
    bodies = np.array([b"abc", b"count me"], np.object_)
    result = client_of(classes).infer("raw", [given("body", bodies, "BYTES", binary=binary)])
    assert result.as_numpy("answer").tolist() == [b"cba", b'{"bytes":8}']


def test_what_is_wrong_is_raised_with_its_reason(files: Serving) -> None:
    client = client_of(files)
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nobody'"):
        client.infer("nobody", [given("x", ROWS, "FP32")])
    with pytest.raises(InferenceServerException, match="unexpected input 'z'"):
        client.infer("twice", [given("z", ROWS, "FP32")])
    with pytest.raises(InferenceServerException, match="float64"):
        client.infer("twice", [given("x", ROWS.astype(np.float64), "FP64")])
    with pytest.raises(InferenceServerException, match=r"shape \[2\]"):
        client.infer("twice", [given("x", ROWS[:, :2], "FP32")])


def test_statistics_count_what_was_done(files: Serving) -> None:
    client = client_of(files)
    (before,) = client.get_inference_statistics("twice")["model_stats"]
    client.infer("twice", [given("x", ROWS, "FP32")])
    (after,) = client.get_inference_statistics("twice")["model_stats"]
    assert after["inference_count"] == before["inference_count"] + 2
    assert after["inference_stats"]["success"]["count"] == before["inference_stats"]["success"]["count"] + 2
    assert len(client.get_inference_statistics()["model_stats"]) == 7


def test_the_client_with_coroutines_is_answered_the_same(files: Serving) -> None:
    async def ask() -> tuple[Any, Any, str]:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{files.port}") as client:
            assert await client.is_server_ready()
            both = await asyncio.gather(
                *(
                    client.infer("twice", [given("x", ROWS, "FP32", binary=binary, kind=triton_aio)])
                    for binary in (True, False)
                )
            )
            packed = await client.infer(
                "twice",
                [given("x", ROWS, "FP32", kind=triton_aio)],
                request_compression_algorithm="gzip",
                response_compression_algorithm="gzip",
            )
            try:
                await client.infer("nobody", [given("x", ROWS, "FP32", kind=triton_aio)])
            except InferenceServerException as error:
                message = str(error.message())
            return [each.as_numpy("y") for each in both], packed.as_numpy("y"), message

    both, packed, message = asyncio.run(ask())
    for each in (*both, packed):
        np.testing.assert_array_equal(each, ROWS * 2)
    assert message.startswith("Request for unknown model")


def test_models_are_unloaded_and_loaded_by_the_operator_alone(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_doubler(tmp_path / name / "1" / "model.onnx")
    with Serving(tmp_path, "--workers", "1") as serving:
        with pytest.raises(InferenceServerException, match="operator"):
            client_of(serving).unload_model("one")
        assert serving.operator.post("/v2/repository/models/one/unload", json={}).status_code == 200
        assert not client_of(serving).is_model_ready("one")
        rows = {row["name"]: row["state"] for row in client_of(serving).get_model_repository_index()}
        assert rows == {"one": "UNAVAILABLE", "two": "READY"}
        assert serving.operator.post("/v2/repository/models/two/unload", json={}).status_code == 409
        assert serving.operator.post("/v2/repository/models/one/load", json={}).status_code == 200
        np.testing.assert_array_equal(
            client_of(serving).infer("one", [given("x", ROWS, "FP32")]).as_numpy("y"), ROWS * 2
        )
        refused = serving.operator.post("/v2/repository/models/three/load", json={})
        assert (refused.status_code, refused.json()["error"][:22]) == (409, "failed to load 'three'")

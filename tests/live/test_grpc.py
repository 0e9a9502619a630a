"""The Open Inference Protocol over gRPC: asked by tritonclient as it is, and by bare gRPC for all the rest."""

from __future__ import annotations

import asyncio
import gzip
import queue
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.test_api_keys import TOKEN, Guarded
from tests.live.test_tls import Https, make, served
from tests.models.onnx_files import FLOAT, INT64, STRING, UINT8, save_doubler, save_echo
from tritonclient.utils import InferenceServerException

from timebound.rpc.schema import message

pytestmark = pytest.mark.live

ROWS = np.array([[1, 2, 3], [4, 5, 6.5]], np.float32)
Request = message("inference.ModelInferRequest")
Response = message("inference.ModelInferResponse")


def address(serving: Serving) -> str:
    at = serving.wait_for_line("listening for gRPC")["at"]
    return str(at).partition("://")[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    save_doubler(folder / "twice" / "1" / "model.onnx")
    for name, kind in {"floats": FLOAT, "integers": INT64, "bytes": UINT8, "texts": STRING, "halves": 10}.items():
        save_echo(folder / name / "1" / "model.onnx", kind, ("n", "w"))
    with Serving(folder, "--workers", "1", "--deadline", "20", "--grpc-port", "0", "--admin-token", TOKEN) as serving:
        yield serving
        assert "Traceback" not in serving.said


@pytest.fixture(scope="module")
def classes() -> Iterator[Serving]:
    with Serving(
        *(MODELS / "tensors.py", "--workers", "1", "--grpc-port", "0", "--max-queue", "8"),
        *("--max-body", "1000000", "--max-held", "2500000", "--read-timeout", "1.5"),
    ) as serving:
        yield serving
        assert "Traceback" not in serving.said


@pytest.fixture
def client(files: Serving) -> Iterator[Any]:
    with triton.InferenceServerClient(address(files)) as client:
        yield client


@pytest.fixture
def channel(classes: Serving) -> Iterator[Any]:
    with grpc.insecure_channel(address(classes)) as channel:
        yield channel


def tensor(name: str, array: Any, datatype: str, kind: Any = triton) -> Any:
    made = kind.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def numbers(model: str, **tensors: tuple[str, list[int], Any]) -> Any:
    """A request with typed contents."""
    request = Request(model_name=model)
    for name, (datatype, shape, values) in tensors.items():
        made = request.inputs.add(name=name, datatype=datatype, shape=shape)
        kind = {"BYTES": "bytes_contents", "FP64": "fp64_contents", "INT64": "int64_contents"}[datatype]
        getattr(made.contents, kind).extend(values)
    return request


def kinds(*texts: bytes, **more: Any) -> Any:
    count = len(texts)
    return numbers(
        "kinds",
        text=("BYTES", [count], list(texts)),
        number=("FP64", [count], [0.5] * count),
        counts=("INT64", [count, 1], [1] * count),
        **more,
    )


def slow(seconds: float) -> Any:
    return numbers("slow", seconds=("FP64", [1], [seconds]))


def ask(channel: Any, request: Any, **more: Any) -> tuple[Any, dict[str, str]]:
    """The answer, and its trailing metadata and parameters; raises `grpc.RpcError`."""
    body = request if isinstance(request, bytes) else request.SerializeToString()
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    said, told = call.with_call(body, timeout=more.pop("timeout", 20), **more)
    answer = Response.FromString(said)
    how = {name: parameter.string_param for name, parameter in answer.parameters.items()}
    return answer, dict(told.trailing_metadata()) | how


def refused(channel: Any, request: Any, **more: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    with pytest.raises(grpc.RpcError) as caught:
        ask(channel, request, **more)
    error: Any = caught.value
    return error.code(), error.details(), dict(error.trailing_metadata())


def texts_of(answer: Any) -> list[bytes]:
    place = [output.name for output in answer.outputs].index("text")
    data, found = answer.raw_output_contents[place], []
    while data:
        end = 4 + int.from_bytes(data[:4], "little")
        found.append(data[4:end])
        data = data[end:]
    return found


# ---------------------------------------------------------------------- tritonclient


def test_it_finds_a_server_that_lives_and_models_with_their_signatures(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("twice", "1")
    assert client.get_server_metadata().name == "timebound"
    told = client.get_model_metadata("twice", as_json=True)
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "3"]}]
    assert told["versions"] == ["1"]
    config = client.get_model_config("twice", as_json=True)["config"]
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["3"]}]
    assert config["max_batch_size"] > 1
    assert {row.name for row in client.get_model_repository_index().models} >= {"twice", "texts"}
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nobody'"):
        client.is_model_ready("nobody")


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
def test_datatypes_come_back_as_they_went(client: Any, model: str, datatype: str, array: Any) -> None:
    got = client.infer(model, [tensor("x", array, datatype)], request_id="r1")
    expected = np.array([[text.encode() for text in array[0]]]) if datatype == "BYTES" else array
    np.testing.assert_array_equal(np.array(got.as_numpy("y").tolist()), np.array(expected.tolist()))
    told = got.get_response()
    assert (told.id, told.model_name, told.model_version) == ("r1", model, "1")
    assert told.parameters["timebound_quality"].string_param == "full"


@pytest.mark.parametrize("packing", ["gzip", "deflate"])
@pytest.mark.parametrize("count", [2, 256])
def test_requests_may_be_packed(client: Any, packing: str, count: int) -> None:
    rows = np.random.default_rng(0).random((count, 3), np.float32)
    got = client.infer("twice", [tensor("x", rows, "FP32")], compression_algorithm=packing)
    np.testing.assert_array_equal(got.as_numpy("y"), rows * 2)


def test_large_messages_go_both_ways(client: Any) -> None:
    row = np.random.default_rng(0).random((1, 2_000_000), np.float32)
    np.testing.assert_array_equal(client.infer("floats", [tensor("x", row, "FP32")]).as_numpy("y"), row)


def test_the_highest_classes_are_told(client: Any) -> None:
    outputs = [triton.InferRequestedOutput("y", class_count=2)]
    got = client.infer("twice", [tensor("x", ROWS, "FP32")], outputs=outputs)
    assert got.as_numpy("y").tolist() == [[b"6.000000:2", b"4.000000:1"], [b"13.000000:2", b"10.000000:1"]]


def test_a_stream_is_answered_in_order_with_its_errors_among_the_answers(client: Any) -> None:
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    for number in range(20):
        model = "nobody" if number == 7 else "twice"
        client.async_stream_infer(model, [tensor("x", ROWS + number, "FP32")], request_id=str(number))
    for number in range(20):
        result, error = heard.get(timeout=20)
        if number == 7:
            assert "unknown model" in str(error)
        else:
            assert result.get_response().id == str(number)
            np.testing.assert_array_equal(result.as_numpy("y"), (ROWS + number) * 2)
    client.stop_stream()


def test_what_is_wrong_is_raised_with_its_reason(client: Any) -> None:
    with pytest.raises(InferenceServerException, match=r"NOT_FOUND.*unknown model: 'nobody'"):
        client.infer("nobody", [tensor("x", ROWS, "FP32")])
    with pytest.raises(InferenceServerException, match=r"NOT_FOUND.*version 9"):
        client.infer("twice", [tensor("x", ROWS, "FP32")], model_version="9")
    with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT.*unexpected input 'z'"):
        client.infer("twice", [tensor("z", ROWS, "FP32")])
    with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT.*shape \[2\]"):
        client.infer("twice", [tensor("x", ROWS[:, :2], "FP32")])


def test_statistics_count_what_was_done(client: Any) -> None:
    (before,) = client.get_inference_statistics("twice").model_stats
    client.infer("twice", [tensor("x", ROWS, "FP32")])
    (after,) = client.get_inference_statistics("twice").model_stats
    assert after.inference_count == before.inference_count + 2
    assert after.inference_stats.success.count == before.inference_stats.success.count + 2
    assert len(client.get_inference_statistics().model_stats) == 6


def test_the_client_with_coroutines_is_answered_the_same(files: Serving) -> None:
    async def ask() -> list[Any]:
        async with triton_aio.InferenceServerClient(address(files)) as client:
            assert await client.is_server_ready()
            inputs = [tensor("x", ROWS, "FP32", triton_aio)]
            return await asyncio.gather(*(client.infer("twice", inputs, client_timeout=20) for _ in range(50)))

    for got in asyncio.run(ask()):
        np.testing.assert_array_equal(got.as_numpy("y"), ROWS * 2)


def test_models_are_unloaded_and_loaded_by_the_operator_alone(client: Any, files: Serving) -> None:
    with pytest.raises(InferenceServerException, match=r"UNAUTHENTICATED.*admin token"):
        client.unload_model("bytes")
    as_operator = {"headers": {"authorization": f"Bearer {TOKEN}"}}
    client.unload_model("bytes", **as_operator)
    assert {row.name: row.state for row in client.get_model_repository_index().models}["bytes"] == "UNAVAILABLE"
    client.load_model("bytes", **as_operator)
    assert client.is_model_ready("bytes")
    with grpc.insecure_channel(address(files)) as channel:  # KServe's clients name it in the first field
        load = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
        body = load(b"\x0a\x05bytes", metadata=[("authorization", f"Bearer {TOKEN}")], timeout=20)
    told = message("inference.RepositoryModelLoadResponse").FromString(body)
    assert (told.model_name, told.isLoaded) == ("bytes", True)


# ---------------------------------------------------------------------- the promises


def test_several_items_are_scheduled_each_by_itself_and_put_together_again(channel: Any) -> None:
    answer, told = ask(channel, kinds(b"a", b"b", b"c"), metadata=[("x-request-id", "mine")])
    assert texts_of(answer) == [b"A", b"B", b"C"]
    assert (told["timebound_quality"], told["timebound_source"], told["x-request-id"]) == ("full", "computed", "mine")
    code, said, _ = refused(channel, kinds(b"a", b"bad"))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert said.startswith("item 1: input 'text'")


def test_the_calls_deadline_is_the_requests(channel: Any, classes: Serving) -> None:
    began = time.monotonic()
    code, _, _ = refused(channel, slow(1.5), timeout=0.3)
    assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert time.monotonic() - began < 1.2
    ask(channel, slow(1.2), timeout=19)
    request = slow(1.5)
    request.parameters["timeout"].int64_param = 200_000
    code, said, _ = refused(channel, request)
    assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert "deadline" in said
    eventually(lambda: classes.gauge("requests_pending") == 0, "nothing pending")


def test_a_caller_that_leaves_is_not_waited_for(channel: Any, classes: Serving) -> None:
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(slow(1.0).SerializeToString())
    eventually(lambda: classes.gauge("grpc_calls_open") == 1, "the call is open")
    call.cancel()
    eventually(lambda: classes.gauge("grpc_calls_open") == 0, "the call is gone")


def test_what_a_cancelled_stream_has_asked_is_open_no_more(channel: Any, classes: Serving) -> None:
    stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    call = stream(iter([slow(1.0).SerializeToString()] * 3))
    eventually(lambda: classes.gauge("grpc_calls_open") == 3, "the requests are open")
    call.cancel()
    eventually(lambda: classes.gauge("grpc_calls_open") == 0, "none of them is")


def test_what_a_stream_was_sent_is_held_no_longer_than_until_its_answers(channel: Any, classes: Serving) -> None:
    stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    request = Request(model_name="raw")
    request.inputs.add(name="body", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"count" * 20_000)
    answers = list(stream(iter([request.SerializeToString()] * 3), timeout=20))
    assert len(answers) == 3
    eventually(lambda: classes.gauge("held_bytes") == 0, "nothing held", within_s=5)


def test_more_than_can_wait_is_refused_with_the_time_to_come_back(channel: Any) -> None:
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    calls = [call.future(slow(0.3).SerializeToString(), timeout=20) for _ in range(24)]
    errors = [error for each in calls if (error := each.exception()) is not None]
    assert 0 < len(errors) < 24
    for error in errors:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"]) > 0


def unheard(channel: Any, method: str, count: int) -> list[str]:
    """How calls end whose message does not come."""
    call = channel.stream_stream(method)
    never: queue.Queue[bytes] = queue.Queue()
    calls = [call(iter(never.get, b""), timeout=20) for _ in range(count)]
    codes = sorted(each.code().name for each in calls)
    for _ in calls:
        never.put(b"")
    return codes


@pytest.mark.parametrize(
    "method",
    [
        *(f"inference.GRPCInferenceService/{name}" for name in ("ModelInfer", "ServerLive", "ModelConfig")),
        *("grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"),
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ],
)
def test_messages_that_do_not_come_hold_memory_for_so_long_and_not_more_than_there_is(
    channel: Any, classes: Serving, method: str
) -> None:
    # Each may become as large as --max-body, and they leave a quarter of --max-held to others.
    assert unheard(channel, f"/{method}", 5) == ["DEADLINE_EXCEEDED"] + ["RESOURCE_EXHAUSTED"] * 4
    eventually(lambda: classes.gauge("held_bytes") == 0, "nothing held", within_s=5)
    assert texts_of(ask(channel, kinds(b"a"))[0]) == [b"A"]


def test_there_are_no_more_streams_than_memory_for_a_message_of_each(channel: Any, classes: Serving) -> None:
    stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    never: queue.Queue[bytes] = queue.Queue()
    calls = [stream(iter(never.get, b""), timeout=20) for _ in range(18)]  # 16 there are at least

    def ended() -> list[Any]:
        return [each for each in calls if not each.is_active()]

    eventually(lambda: len(ended()) == 2, "those beyond are refused")
    assert {each.code() for each in ended()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert "16 streams are open" in ended()[0].details()
    for each in calls:
        each.cancel()
        never.put(b"")


def test_a_key_makes_two_requests_one(channel: Any) -> None:
    metadata = [("idempotency-key", "k1")]
    assert ask(channel, kinds(b"a"), metadata=metadata)[1]["timebound_source"] == "computed"
    assert ask(channel, kinds(b"a"), metadata=metadata)[1]["timebound_source"] == "stored"
    code, said, _ = refused(channel, kinds(b"b"), metadata=metadata)
    assert (code, "another body" in said) == (grpc.StatusCode.FAILED_PRECONDITION, True)


def test_the_id_is_the_key_of_a_model_that_wants_one(channel: Any) -> None:
    request = numbers("named", text=("BYTES", [1], [b"x"]))
    request.id = "order-7"
    assert ask(channel, request)[1]["timebound_source"] == "computed"
    answer, told = ask(channel, request)
    assert (answer.id, told["timebound_source"]) == ("order-7", "stored")


def test_a_model_that_is_late_gives_its_fallback_and_says_so(tmp_path: Path) -> None:
    with (
        Gate(tmp_path / "gate") as gate,
        Serving(MODELS / "falls_back.py", "--workers", "1", "--grpc-port", "0") as serving,
        grpc.insecure_channel(address(serving)) as channel,
    ):
        request = numbers("careful", id=("BYTES", [1], [b"a"]), gate=("BYTES", [1], [str(tmp_path / "gate").encode()]))
        _, told = ask(channel, request, metadata=[("timebound-timeout-ms", "400")])
        gate.open()
    assert told["timebound_quality"] == "fallback"


def test_a_server_that_leaves_answers_what_it_took_and_refuses_the_rest(tmp_path: Path) -> None:
    with (
        Gate(tmp_path / "gate") as gate,
        Serving(MODELS / "waits.py", "--workers", "1", "--grpc-port", "0") as serving,
        grpc.insecure_channel(address(serving)) as channel,
    ):
        request = numbers("waits", value=("INT64", [1], [3]), gate=("BYTES", [1], [str(tmp_path / "gate").encode()]))
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        taken = call.future(request.SerializeToString(), timeout=20)
        idle = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter(queue.Queue().get, None))
        eventually(lambda: serving.gauge("grpc_calls_open") == 1, "the call is open")
        serving.signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as ended:  # it waits until then
            next(idle)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        assert refused(channel, request, timeout=2)[0] == grpc.StatusCode.UNAVAILABLE
        gate.open()
        assert Response.FromString(taken.result()).model_name == "waits"
        assert serving.wait() == 0


def test_one_address_may_have_so_many_calls_open_and_a_stream_is_one(tmp_path: Path) -> None:
    with (
        Gate(tmp_path / "gate") as gate,
        # The third is the connection on which this test asks for the server's gauges
        Serving(MODELS / "waits.py", "--workers", "1", "--grpc-port", "0", "--max-per-address", "3") as serving,
        grpc.insecure_channel(address(serving)) as channel,
    ):
        request = numbers("waits", value=("INT64", [1], [3]), gate=("BYTES", [1], [str(tmp_path / "gate").encode()]))
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        asked.put(request.SerializeToString())
        streamed = stream(iter(asked.get, None), timeout=20)
        eventually(lambda: serving.gauge("requests_pending") == 1, "the stream's request waits")
        first = infer.future(request.SerializeToString(), timeout=20)
        eventually(lambda: serving.gauge("requests_pending") == 2, "the call waits")
        status, text, metadata = refused(channel, request)
        assert (status, metadata["timebound-code"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "client_busy")
        assert "3 connections and calls of this address are open" in text
        gate.open()
        first.result()
        next(streamed)
        asked.put(None)
        assert list(streamed) == []
        ask(channel, request)
        assert serving.gauge("grpc_calls_open") == 0


def test_api_keys_hold_as_over_http(tmp_path: Path) -> None:
    with (
        Guarded(tmp_path, MODELS / "echo.py", "--workers", "1", "--grpc-port", "0") as serving,
        grpc.insecure_channel(address(serving)) as channel,
    ):
        one = numbers("echo", value=("INT64", [1], [1]))
        for metadata in ([], [("x-api-key", "tb_wrong")], [("authorization", "Bearer tb_wrong")]):
            assert refused(channel, one, metadata=metadata)[0] == grpc.StatusCode.UNAUTHENTICATED
        ask(channel, one, metadata=[("x-api-key", serving.shop)])
        ask(channel, one, metadata=[("authorization", f"Bearer {serving.shop}")])
        nobody = numbers("nobody", value=("INT64", [1], [1]))
        told = {refused(channel, each, metadata=[("x-api-key", serving.toy)])[:2] for each in (one, nobody)}
        assert told == {(grpc.StatusCode.PERMISSION_DENIED, "the key of 'toy' is not for this model")}
        three = numbers("echo", value=("INT64", [3], [1, 2, 3]))
        code, _, more = refused(channel, three, metadata=[("x-api-key", serving.lab)])
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(more["grpc-retry-pushback-ms"]) > 1_000
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        assert live(b"", timeout=5) == b"\x08\x01"
        index = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")
        assert index(b"", timeout=5, metadata=[("x-api-key", serving.toy)]) == b""
        unload = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelUnload")
        with pytest.raises(grpc.RpcError) as caught:
            unload(b"\x12\x04echo", timeout=5, metadata=[("x-api-key", serving.shop)])
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED


# ---------------------------------------------------------------------- health, reflection, TLS


def test_health_is_told_as_load_balancers_ask_it(channel: Any) -> None:
    answer = message("grpc.health.v1.HealthCheckResponse")
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert answer.FromString(check(b"", timeout=5)).status == 1
    assert answer.FromString(check(b"\x0a\x1einference.GRPCInferenceService", timeout=5)).status == 1
    with pytest.raises(grpc.RpcError) as caught:
        check(b"\x0a\x01x", timeout=5)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=5)
    assert answer.FromString(next(watch)).status == 1
    watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_tells_enough_to_make_a_request(channel: Any, version: str) -> None:
    name = f"grpc.reflection.{version}.ServerReflection"
    question = message(f"{name}Request")
    asked = [question(list_services=""), question(file_containing_symbol="inference.GRPCInferenceService.ModelInfer")]
    asked.append(question(file_by_filename="nothing.proto"))
    talk = channel.stream_stream(f"/{name}/ServerReflectionInfo")
    answers = [
        message(f"{name}Response").FromString(body)
        for body in talk(iter([each.SerializeToString() for each in asked]), timeout=10)
    ]
    assert {each.name for each in answers[0].list_services_response.service} >= {"inference.GRPCInferenceService", name}
    pool = descriptor_pool.DescriptorPool()
    (file,) = answers[1].file_descriptor_response.file_descriptor_proto
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file))
    method = pool.FindMethodByName("inference.GRPCInferenceService.ServerReady")
    made = message_factory.GetMessageClass(method.input_type)()
    ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(made.SerializeToString(), timeout=5)
    assert message_factory.GetMessageClass(method.output_type).FromString(ready).ready
    assert answers[2].error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_tls_is_that_of_http(tmp_path: Path) -> None:
    make(tmp_path, "localhost")
    with Https(*served(tmp_path, "--grpc-port", "0")) as serving:
        where = address(serving).replace("127.0.0.1", "localhost")

        def name_shown() -> bool:
            trusted = grpc.ssl_channel_credentials((tmp_path / "cert.pem").read_bytes())
            with grpc.secure_channel(where, trusted) as channel:
                live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
                try:
                    return bool(live(b"", timeout=5) == b"\x08\x01")
                except grpc.RpcError:
                    return False

        assert name_shown()
        make(tmp_path, "localhost")
        assert not name_shown()
        serving.signal(signal.SIGHUP)
        eventually(name_shown, "the new certificate")


# ---------------------------------------------------------------------- anything at all

INPUTS = st.lists(
    st.tuples(
        st.sampled_from(["text", "number", "counts", "seconds", "body", ""]),
        st.sampled_from(["INT64", "FP32", "FP64", "BYTES", "BOOL", "BF16", "NONE"]),
        st.lists(st.integers(-2, 4) | st.integers(-(2**63), 2**63 - 1), max_size=3),
        st.sampled_from(["", "bytes_contents", "fp64_contents", "int64_contents", "bool_contents"]),
    ),
    max_size=4,
)
VALUES = {"bytes_contents": [b"a", b""], "fp64_contents": [0.5], "int64_contents": [1, 2], "bool_contents": [True]}


def test_any_message_is_answered_or_refused_as_the_callers_mistake(channel: Any, classes: Serving) -> None:
    @settings(max_examples=300, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from(["kinds", "raw", "slow", "", "nobody"]),
        INPUTS,
        st.lists(st.binary(max_size=40), max_size=4),
        st.tuples(st.integers(0, 60), st.binary(max_size=9), st.booleans()),
    )
    def fuzz(model: str, inputs: Any, raws: list[bytes], spoilt: tuple[int, bytes, bool]) -> None:
        cut, more, is_packed = spoilt
        request = Request(model_name=model, raw_input_contents=raws)
        for name, datatype, shape, contents in inputs:
            made = request.inputs.add(name=name, datatype=datatype, shape=shape)
            if contents:
                getattr(made.contents, contents).extend(VALUES[contents])
        body = request.SerializeToString()
        body = (body[: len(body) - cut] if cut < 30 else body) + more
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = call.future(gzip.compress(body) if is_packed else body, timeout=20)
        assert answer.code() in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), body

    fuzz()
    for method in ("ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad"):
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        for body in (b"\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x01\xff", gzip.compress(bytes(10_000_000))):
            with pytest.raises(grpc.RpcError) as caught:
                call(body, timeout=5)
            assert caught.value.code() != grpc.StatusCode.INTERNAL
    code, _, _ = refused(channel, gzip.compress(kinds(b"a" * 100_000_000).SerializeToString()))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED  # a hundred times what --max-body allows, in a small message
    code, _, _ = refused(channel, kinds(b"a" * 1_100_000))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert texts_of(ask(channel, kinds(b"a"))[0]) == [b"A"]
    assert classes.gauge("requests_pending") == 0

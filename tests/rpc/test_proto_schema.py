"""Our own words for the protocol say what other servers' and clients' do, and live beside theirs."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tritonclient.grpc import model_config_pb2, service_pb2

from timebound.rpc.schema import POOL, file_of, message

KSERVES = {"RepositoryModelLoadResponse", "RepositoryModelUnloadResponse"}
"""Triton's have no fields, KServe's have."""


def messages(descriptor: Any) -> dict[str, Any]:
    found = {}
    for name, each in descriptor.items():
        found[name] = each
        found |= {f"{name}.{inner}": one for inner, one in messages(each.nested_types_by_name).items()}
    return found


THEIRS = {
    **messages(model_config_pb2.DESCRIPTOR.message_types_by_name),
    **messages(service_pb2.DESCRIPTOR.message_types_by_name),
}
OURS = messages(POOL.FindFileByName("inference.proto").message_types_by_name)


@pytest.mark.parametrize("name", OURS)
def test_every_field_has_the_number_and_the_type_that_triton_gives_it(name: str) -> None:
    for field in OURS[name].fields:
        if name in KSERVES:
            continue
        other = THEIRS[name].fields_by_name[field.name]
        assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated)
        if field.message_type is not None:
            assert field.message_type.full_name == other.message_type.full_name


def test_every_method_that_is_there_has_tritons_types() -> None:
    ours = POOL.FindServiceByName("inference.GRPCInferenceService").methods_by_name
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    for name, method in ours.items():
        other = theirs[name]
        assert method.input_type.full_name == other.input_type.full_name
        assert method.output_type.full_name == other.output_type.full_name
        assert (method.client_streaming, method.server_streaming) == (other.client_streaming, other.server_streaming)
    assert {name for name in theirs if name not in ours} == {
        *(f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Status", "Register", "Unregister")),
        "TraceSetting",
        "LogSettings",
    }


def test_what_reflection_gives_away_has_full_names() -> None:
    file = FileDescriptorProto.FromString(POOL.FindFileByName("inference.proto").serialized_pb)
    request = next(each for each in file.message_type if each.name == "ModelInferRequest")
    kinds = {field.name: field.type_name for field in request.field if field.type_name}
    assert kinds["inputs"] == ".inference.ModelInferRequest.InferInputTensor"
    assert file.service[0].method[0].input_type == ".inference.ServerLiveRequest"


def test_a_message_of_ours_is_read_by_a_client_in_the_same_process() -> None:
    ours = message("inference.ModelInferRequest")(model_name="m")
    ours.parameters["timeout"].int64_param = 5
    theirs = service_pb2.ModelInferRequest.FromString(ours.SerializeToString())
    assert (theirs.model_name, theirs.parameters["timeout"].int64_param) == ("m", 5)


def test_a_mistake_in_a_file_is_named() -> None:
    with pytest.raises(ValueError, match="; is missing before string"):
        file_of("x.proto", 'syntax = "proto3"; message A { string a = 1 string b = 2; }')

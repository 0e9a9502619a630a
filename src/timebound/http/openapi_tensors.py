"""What the OpenAPI document says of one model in protocols beside our own: tensors, rows and columns, SageMaker's.

What these protocols ask of every server alike lies beside this file in `openapi_tensors.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import msgspec

from timebound.http.surfaces.oip import OpenInference
from timebound.http.surfaces.predict import Predict
from timebound.http.surfaces.sagemaker import SageMaker
from timebound.tensors.asked import MOST_ITEMS
from timebound.types import ModelInfo, Tensor

Json = dict[str, Any]

_MOST_OF_EXAMPLE = 64
"""Numbers of one input that an example shows; of a model that takes more there is none."""
_HEAD_SIZE = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "How many bytes of the body are JSON, if binary tensors follow; 0: the whole is the only input.",
    "schema": {"type": "integer", "minimum": 0},
}
_ERROR = {"default": {"$ref": "#/components/responses/TensorError"}}
_BINARY = {"schema": {"type": "string", "format": "binary"}}


class Parts(msgspec.Struct, frozen=True):
    """What was made of a model before."""

    body: Json
    """Its request body in our own protocol."""
    shared: Json
    """What the operations of all models have in common."""
    answers: Json
    """Its responses in our own protocol."""


def tensor_paths(model: ModelInfo, parts: Parts, begin: Callable[[], Json], *, is_lone: bool) -> Json:
    """The paths of one model; `begin` makes the operation that a path's is made from, with an id of its own."""
    paths: Json = {}
    for path in (*OpenInference.paths(model), *OpenInference.version_paths(model)):
        paths[path] = {"post": begin() | _infer(model, parts.shared)}
    if model.is_handler:  # it has the others by TorchServe's protocol
        return paths
    for path in (*Predict.paths(model), *Predict.version_paths(model)):
        paths[path] = {"post": begin() | _predict(model, parts)}
    own = {"requestBody": parts.body, "responses": parts.answers}
    for path in (*SageMaker.paths(model), *([SageMaker.lone_path] if is_lone else [])):
        paths[path] = {"post": begin() | parts.shared | own | {"summary": f"Ask {model.name} as SageMaker does"}}
    return paths


# ---------------------------------------------------------------------- tensors


def _infer(model: ModelInfo, shared: Json) -> Json:
    named = {"type": "object", "required": ["name"], "properties": {"name": _one_of(model.outputs), **_MORE}}
    asked = _object(
        ["inputs"],
        id={"type": "string"},
        inputs={"type": "array", "minItems": 1, "items": _any_of([_input(each) for each in model.inputs])},
        outputs={"type": "array", "items": named},
        **_MORE,
    )
    media: Json = {"schema": asked}
    if (example := _example(model)) is not None:
        media["example"] = example
    told = _object(
        ["model_name", "model_version", "outputs"],
        model_name={"type": "string", "const": model.base},
        model_version={"type": "string"},
        id={"type": "string"},
        outputs={"type": "array", "items": _any_of([_output(each) for each in model.outputs])},
    )
    headers = {name: part for name, part in shared["responses"]["200"]["headers"].items() if name != "Timebound-Votes"}
    answer = {
        "description": "The outputs. If binary tensors follow the JSON, Inference-Header-Content-Length is its length.",
        "headers": {**headers, _HEAD_SIZE["name"]: {"schema": _HEAD_SIZE["schema"]}},
        "content": {"application/json": {"schema": told}, "application/octet-stream": _BINARY},
    }
    return {
        "summary": f"Ask {model.name} with tensors",
        "parameters": [_HEAD_SIZE, *_parameters(shared)],
        "requestBody": {"required": True, "content": {"application/json": media, "application/octet-stream": _BINARY}},
        "responses": {"200": answer, **_ERROR},
    }


_MORE: Json = {"parameters": {"type": "object"}}


def _object(required: Sequence[str], **properties: Any) -> Json:
    return {"type": "object", "required": [*required], "properties": properties}


def _any_of(schemas: Sequence[Json]) -> Json:
    return {} if not schemas else schemas[0] if len(schemas) == 1 else {"anyOf": [*schemas]}


def _one_of(tensors: Sequence[Tensor]) -> Json:
    return {"enum": [each.name for each in tensors]} if tensors else {"type": "string"}


def _input(tensor: Tensor) -> Json:
    """An input as the model is best sent it; some take other datatypes and shapes too."""
    first = {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS, "description": "how many items"}
    rest = [{"type": "integer", "minimum": 0} if size < 0 else {"const": size} for size in tensor.shape[1:]]
    shape = {"type": "array", "prefixItems": [first, *rest], "minItems": len(tensor.shape)}
    datatype = {"type": "string", "examples": [tensor.datatype]}
    return _object(
        ["name", "shape", "datatype"],
        name={"const": tensor.name},
        shape=shape,
        datatype=datatype,
        data={"type": "array"},
        parameters=_object([], binary_data_size={"type": "integer", "minimum": 0}),
    )


def _output(tensor: Tensor) -> Json:
    return _object(
        ["name", "shape", "datatype"],
        name={"const": tensor.name},
        shape={"type": "array", "items": {"type": "integer", "minimum": 0}, "examples": [tensor.shape]},
        datatype={"type": "string", "examples": [tensor.datatype]},
        data={"type": "array"},
        parameters=_object([], binary_data_size={"type": "integer", "minimum": 0}),
    )


def _example(model: ModelInfo) -> Json | None:
    """A request of one item that the model answers, if what is known of it is enough for one."""
    inputs = []
    for tensor in model.inputs:
        if tensor.is_optional:
            continue
        shape, data = [1, *(max(size, 1) for size in tensor.shape[1:])], _data(model, tensor)
        if data is None:
            if model.example is not None or tensor.datatype == "BYTES" or prod(shape) > _MOST_OF_EXAMPLE:
                return None
            data = [tensor.datatype == "BOOL"] * prod(shape) if tensor.datatype == "BOOL" else [0] * prod(shape)
        elif len(shape) == 2 and tensor.shape[1] < 0:
            shape[1] = len(data)
        if len(data) != prod(shape) or len(data) > _MOST_OF_EXAMPLE:
            return None
        inputs.append({"name": tensor.name, "shape": shape, "datatype": tensor.datatype, "data": data})
    return {"inputs": inputs} if inputs else None


def _data(model: ModelInfo, tensor: Tensor) -> list[Any] | None:
    """What the model's example says for an input, as a flat list; None if tensors cannot say the same."""
    said = model.example.get(tensor.name) if isinstance(model.example, dict) else None
    properties = _properties(model)
    if tensor.datatype == "BYTES":
        is_text = isinstance(said, str) and "contentEncoding" not in properties.get(
            tensor.name, {"contentEncoding": ""}
        )
        return [said] if is_text else None
    flat = _flat(said)
    return flat if said is not None and all(isinstance(value, int | float) for value in flat) else None


def _properties(model: ModelInfo) -> Json:
    """The fields of its request, where they stand in the schema itself or in the definition it names."""
    schema = model.request_schema or {}
    named = schema.get("$ref", "").rpartition("/")[2]
    found: Json = schema.get("$defs", {}).get(named, schema).get("properties", {})
    return found


def _flat(value: Any) -> list[Any]:
    return [one for each in value for one in _flat(each)] if isinstance(value, list) else [value]


# ---------------------------------------------------------------------- rows and columns


def _predict(model: ModelInfo, parts: Parts) -> Json:
    item = parts.body["content"].get("application/json", {}).get("schema")
    if item is None:
        item = {"anyOf": [{"type": "string"}, _object(["b64"], b64={"type": "string", "contentEncoding": "base64"})]}
    elif len([each for each in model.inputs if not each.is_optional]) == 1:
        item = {"anyOf": [item, {"description": "the value of the only field that is required"}]}
    rows = {"type": "array", "minItems": 1, "maxItems": MOST_ITEMS, "items": item}
    columns = {"type": ["object", "array"], "description": "one list for each field"}
    asked = {"anyOf": [_object(["instances"], instances=rows), _object(["inputs"], inputs=columns)]}
    media: Json = {"schema": asked}
    if model.example is not None and "application/json" in parts.body["content"]:
        media["example"] = {"instances": [model.example]}
    told = {
        "anyOf": [_object(["predictions"], predictions={"type": "array"}), _object(["outputs"], outputs={})],
    }
    same = parts.shared["responses"]["200"]
    headers = {name: part for name, part in same["headers"].items() if name != "Timebound-Votes"}
    answer = {"description": "`predictions` for `instances`, in order; `outputs` for `inputs`.", "headers": headers}
    return {
        "summary": f"Ask {model.name} with rows or columns",
        "parameters": _parameters(parts.shared),
        "requestBody": {"required": True, "content": {"application/json": media}},
        "responses": {"200": answer | {"content": {"application/json": {"schema": told}}}, **_ERROR},
    }


def _parameters(shared: Json) -> list[Json]:
    """Without that which asks for votes: these protocols have no place for them."""
    return [each for each in shared["parameters"] if not each["$ref"].endswith("/TimeboundDetails")]

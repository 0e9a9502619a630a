"""What is read off a model class, and the sentences for what is wrong with one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import timebound as tb
from timebound.body import FirstLook
from timebound.errors import SetupError
from timebound.model import body_schema, check_class, doubtful_attributes, example_body, name_of, request_schema
from timebound.types import ModelInfo


class Good(tb.Model):
    def infer(self, batch: Any) -> Any:
        return batch


class Body(tb.Struct):
    id: str
    image: str = msgspec.field(name="picture", default="")


def variant(**attributes: Any) -> type[tb.Model]:
    """A class like `Good`, with these attributes."""
    return type("Variant", (Good,), attributes)


def complaint(cls: type[tb.Model]) -> str:
    with pytest.raises(SetupError) as caught:
        check_class(cls)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dedline", "deadline"),
        ("max_bach", "max_batch"),
        ("deadline_s", "deadline"),
        ("fall_back", "fallback"),
        ("max_batch_size", "max_batch"),
        ("timeout", "deadline"),
    ],
)
def test_a_misspelt_option_is_doubted_with_a_suggestion(name: str, meant: str) -> None:
    sentence = f"class Variant: {name} means nothing to the server; did you mean {meant}?"
    assert doubtful_attributes(variant(**{name: 1})) == [sentence]


@pytest.mark.parametrize("name", ["weights", "threshold", "headline", "sizes", "labels", "_dedline", "deadline"])
def test_an_attribute_that_resembles_no_option_is_the_users_own(name: str) -> None:
    assert doubtful_attributes(variant(**{name: 1})) == []


def test_an_option_of_another_server_is_the_users_own_where_the_class_reads_it_or_has_ours_too() -> None:
    class Reads(tb.Model):
        batch_size = 4

        def infer(self, batch: Any) -> Any:
            return [batch[at : at + self.batch_size] for at in range(0, len(batch), 4)]

    assert doubtful_attributes(Reads) == []
    assert doubtful_attributes(variant(timeout=3, deadline=1.0)) == []


def noop(self: tb.Model, *_: Any) -> None:
    """A method."""


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("prepair", "prepare"), ("finnish", "finish"), ("falback", "fallback"), ("preprocess", "prepare"),
        ("decode_request", "prepare"), ("predict", "infer"), ("inference", "infer"), ("postprocess", "finish"),
        ("setup", "load"), ("initialize", "load"),
    ],
)  # fmt: skip
def test_a_misspelt_method_and_one_of_another_server_are_doubted(name: str, meant: str) -> None:
    cls = type("Variant", (tb.Model,), {name: noop})
    sentence = f"class Variant: {name} means nothing to the server; did you mean {meant}?"
    assert doubtful_attributes(cls) == [sentence]


def test_a_method_that_the_class_calls_itself_is_its_own() -> None:
    class Uses(tb.Model):
        def predict(self, batch: Any) -> Any:
            return batch

        def infer(self, batch: Any) -> Any:
            return [out for item in batch for out in (self.predict(each) for each in [item])]

        def preprocess(self, request: Any) -> Any:
            return request

        def prepare(self, request: Any) -> Any:
            return helped(self, request)

    def helped(model: Uses, request: Any) -> Any:
        return model.preprocess(request)

    assert doubtful_attributes(Uses) == []
    assert doubtful_attributes(variant(reload=noop, unload=noop, prepare_text=noop)) == []


def test_a_class_written_for_another_server_is_told_which_method_is_missing() -> None:
    class Elsewhere(tb.Model):
        def predict(self, batch: Any) -> Any:
            return batch

    assert complaint(Elsewhere).endswith("; class Elsewhere: predict means nothing to the server; did you mean infer?")


def test_a_model_is_named_after_its_class_unless_it_has_a_name() -> None:
    assert name_of(Good) == "good"
    assert name_of(variant(name="Digits-2.1")) == "Digits-2.1"


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"name": "a"},
        {"name": "a" * 64},
        {"deadline": 1},
        {"deadline": 0.001, "max_batch": 1, "path": "/inference"},
        {"Request": Body, "key": "id"},
        {"Request": Body, "key": "picture.id"},
        {"accepts": "image/*"},
        {"accepts": "image/png, image/svg+xml"},
    ],
)
def test_a_sound_class_passes(attributes: dict[str, Any]) -> None:
    check_class(variant(**attributes))


def test_a_class_that_loads_a_net_needs_no_infer() -> None:
    class Loads(tb.Model):
        def load(self) -> None:
            self.net = len

    class Has(tb.Model):
        net = len

    check_class(Loads)
    check_class(Has)


def test_a_class_without_infer_is_told_both_cures() -> None:
    class Empty(tb.Model):
        pass

    assert complaint(Empty) == ("class Empty has no infer: define `def infer(self, batch)`, or set self.net in load()")


@pytest.mark.parametrize("name", ["with space", "a/b", "-a", ".hidden", "é", "a" * 65, "a\n"])
def test_a_name_that_does_not_fit_a_url_is_refused(name: str) -> None:
    assert complaint(variant(name=name)) == (
        f"class Variant: name {name!r} must be letters, digits, '.', '_' or '-', at most 64 of them"
    )


@pytest.mark.parametrize("deadline", [0, -1, 0.0009, 3601, float("nan"), float("inf"), "1s", None])
def test_a_deadline_that_is_no_length_of_time_is_refused(deadline: Any) -> None:
    assert complaint(variant(deadline=deadline)) == (
        f"class Variant: deadline is {deadline!r}; give seconds between 0.001 and 3600"
    )


@pytest.mark.parametrize("max_batch", [0, -1, 1.5, "8", None])
def test_a_max_batch_that_is_no_count_is_refused(max_batch: Any) -> None:
    assert complaint(variant(max_batch=max_batch)) == (
        f"class Variant: max_batch is {max_batch!r}; give a whole number of at least 1"
    )


@pytest.mark.parametrize("path", ["inference", "", 7])
def test_a_path_without_a_slash_is_refused(path: Any) -> None:
    assert complaint(variant(path=path)) == f"class Variant: path is {path!r}; it must start with '/'"


@pytest.mark.parametrize("path", ["/", "/livez", "/docs", "/ui", "/ui/app.js", "/ui/nothing", "/v1/models", "/v1/x/y"])
def test_a_path_of_the_servers_own_is_refused(path: str) -> None:
    assert f"path {path!r} is one of the server's own; choose another" in complaint(variant(path=path))


@pytest.mark.parametrize("path", ["/a?b", "/a#b", "/a%62", "/../livez", "/a/./b", "/a/..", "/a\r\nb"])
def test_a_path_that_nobody_can_ask_for_is_refused(path: str) -> None:
    assert f"path {path!r} cannot be asked for" in complaint(variant(path=path))


def test_a_key_needs_a_typed_body() -> None:
    assert complaint(variant(key="id")) == (
        "class Variant: key = 'id' needs a typed body; add `class Request(tb.Struct)`"
    )


@pytest.mark.parametrize("key", ["uuid", "image", "uuid.id"])
def test_a_key_that_is_no_field_is_refused_with_the_fields_there_are(key: str) -> None:
    assert complaint(variant(Request=Body, key=key)) == (
        f"class Variant: key = {key!r} is not a field of Request (it has: id, picture)"
    )


@pytest.mark.parametrize("request_type", [dict, {"id": str}, "Body"])
def test_a_request_that_is_no_struct_is_refused(request_type: Any) -> None:
    assert complaint(variant(Request=request_type)) == (
        "class Variant: Request must be a tb.Struct, a dataclass or a pydantic model; write `class Request(tb.Struct):`"
    )


@pytest.mark.parametrize("attributes", [{"name": 7}, {"Request": Body, "key": 7}], ids=["name", "key"])
def test_a_name_or_key_that_is_no_text_is_refused(attributes: dict[str, Any]) -> None:
    sentence = complaint(variant(**attributes))
    assert sentence.startswith("class Variant: ")
    assert "7" in sentence


def test_the_defaults_pass_a_request_through_the_net() -> None:
    model = tb.Model()
    model.net = list
    assert model.prepare("request") == "request"
    assert model.infer((1, 2)) == [1, 2]
    assert model.finish("output", "request") == "output"
    assert model.fallback is None


def test_the_schema_of_a_request_type_holds_its_parts() -> None:
    schema = request_schema(Body)
    assert schema is not None
    assert schema["$defs"]["Body"]["required"] == ["id"]
    assert request_schema(None) is None


@pytest.mark.parametrize(
    ("example", "body"),
    [
        (b"\x00", b"\x00"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ("text", b"text"),
        ({"id": "a"}, b'{"id":"a"}'),
        (Body("a", "p"), b'{"id":"a","picture":"p"}'),
        ([1, 2], b"[1,2]"),
    ],
)
def test_an_example_becomes_the_bytes_a_client_would_send(example: Any, body: bytes) -> None:
    assert example_body(example) == body


def test_an_example_that_is_no_body_is_refused() -> None:
    with pytest.raises(SetupError, match=r"^example is a int; give a dict \(typed body\) or bytes \(raw body\)$"):
        example_body(7)


@pytest.mark.parametrize("accepts", ["pictures", "", 7, "image/png;", "*"])
def test_accepts_must_be_media_types(accepts: Any) -> None:
    assert "accepts" in complaint(variant(accepts=accepts))


def test_accepts_is_for_raw_bodies() -> None:
    assert "Request makes the body JSON" in complaint(variant(accepts="image/*", Request=Body))


def test_a_picture_field_says_so_in_the_schema() -> None:
    class Drawing(tb.Struct):
        image: tb.Image64

    schema = request_schema(Drawing)
    assert schema is not None
    assert schema["$defs"]["Drawing"]["properties"]["image"] == {
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": "image/png",
    }


class Odd(tb.Struct):
    handle: complex


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"json": True, "Request": Body}, "json = True is for models without Request"),
        ({"json": True, "accepts": "text/plain"}, "json = True makes the body JSON"),
        ({"lax": True}, "lax = True is about the fields of Request"),
        ({"Request": Odd}, "JSON cannot fill Request"),
    ],
)
def test_ways_to_read_bodies_that_contradict_each_other_are_refused(attributes: dict[str, Any], why: str) -> None:
    assert why in complaint(variant(**attributes))


def test_json_without_a_class_may_have_a_key() -> None:
    named = variant(json=True, key="id")
    check_class(named)
    look = FirstLook(ModelInfo(name="named", key="id", request_schema=body_schema(named)))
    assert look.check(b'{"id": "k", "words": [1]}') == ("k", 1.0)
    assert look.check(b'{"words": [1]}') == (None, 1.0)


def test_what_a_type_converts_is_not_refused_before() -> None:
    lax = variant(lax=True, Request=Body, key="id")
    look = FirstLook(ModelInfo(name="lax", key="id", request_schema=body_schema(lax)))
    assert look.check(b'{"id": 7}') == ("7", 1.0)

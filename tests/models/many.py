"""Models of every kind in one server, to be asked anything at all."""

from typing import Annotated, Any, Literal

import msgspec

import timebound as tb


class Box(tb.Struct):
    width: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    height: Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Order(tb.Model):
    """Takes every kind of field."""

    path = "/order"
    key = "id"
    size = "note"
    deadline = 20.0
    example = {"id": "a", "count": 1}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        id: str
        count: Annotated[int, msgspec.Meta(ge=0, le=1000)]
        note: str = ""
        kind: Literal["small", "large"] = "small"
        boxes: list[Box] = msgspec.field(default_factory=list)
        tags: dict[str, str] = msgspec.field(default_factory=dict)
        ratio: float | None = None
        is_urgent: bool = False

    def infer(self, batch: Any) -> Any:
        return [sum(box.width * box.height for box in request.boxes) + request.count for request in batch]

    def finish(self, output: float, request: Request) -> dict[str, Any]:
        return {"id": request.id, "area": output, "tags": len(request.tags)}

    def fallback(self, request: Request) -> dict[str, Any]:
        return {"id": request.id, "area": None}


class Anything(tb.Model):
    """Takes any JSON and says it again."""

    deadline = 20.0
    cache = "content"
    example = {"any": [1, 2]}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        any: Any

    def infer(self, batch: Any) -> Any:
        return list(batch)

    def finish(self, output: Any, request: Request) -> Any:
        return {"any": request.any}


class Picture(tb.Model):
    """Takes a picture in a field."""

    deadline = 20.0

    class Request(tb.Struct):
        image: tb.Image64

    example = {"image": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="}  # noqa: RUF012

    def prepare(self, request: Request) -> Any:
        return tb.image.decode(request.image, size=(8, 8), mode="L")

    def infer(self, batch: Any) -> Any:
        return [float(picture.mean()) for picture in batch]


class Bytes(tb.Model):
    """Takes any bytes and gives them back."""

    deadline = 20.0
    accepts = "application/octet-stream"

    def infer(self, batch: Any) -> Any:
        return list(batch)

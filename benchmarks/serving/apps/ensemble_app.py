"""The image ensemble: a base64 PNG in, the class on which three networks agree out."""

import sys
from pathlib import Path
from typing import Any, ClassVar

import timebound as tb

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.tools.workload import decode, model_paths

# A PNG of one pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mOIqpgGAAKYAWkn2FViAAAAAElFTkSuQmCC"


class Ensemble(tb.Model):
    """Classifies pictures with the files in the folder named by BENCH_MODELS."""

    name = "ensemble"
    deadline = 5.0  # far away: this measures overhead, not lateness
    key = "uuid"
    example: ClassVar[Any] = {"uuid": "example", "image": PIXEL}

    class Request(tb.Struct):
        uuid: str
        image: str

    def load(self) -> None:
        self.net = tb.ensemble(*(tb.onnx(str(path)) for path in model_paths()), combine="mean")

    def prepare(self, request: Any) -> Any:
        try:
            return decode(request.image)
        except ValueError as error:
            raise tb.BadInput(str(error), field="image") from error

    def finish(self, output: Any, request: Any) -> Any:
        return {"uuid": request.uuid, "answer": int(output.argmax())}

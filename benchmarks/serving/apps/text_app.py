"""The text model: a text of 5 to 60 letters in, one of the same length out; batches are padded to the longest."""

import sys
from pathlib import Path
from typing import Any, ClassVar

import timebound as tb

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.tools.texts import TEXT_MODEL_FILE, encode, pad, read
from benchmarks.tools.workload import models_folder


class Text(tb.Model):
    """Runs the transformer in the folder named by BENCH_MODELS."""

    name = "text"
    deadline = 5.0  # far away: this measures overhead, not lateness
    size = "text"
    example: ClassVar[Any] = {"text": "an example of about thirty letters"}

    class Request(tb.Struct):
        text: str

    def load(self) -> None:
        self.net = tb.onnx(models_folder() / TEXT_MODEL_FILE)

    def prepare(self, request: Any) -> Any:
        try:
            return encode(request.text)
        except ValueError as error:
            raise tb.BadInput(str(error), field="text") from error

    def infer(self, batch: Any) -> Any:
        return self.net(pad(batch))

    def finish(self, output: Any, request: Any) -> Any:
        return {"text": read(output, len(request.text))}

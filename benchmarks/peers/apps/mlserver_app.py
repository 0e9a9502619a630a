"""MLServer: a custom runtime behind its adaptive batching, asked in the V2 protocol."""

from typing import Any

from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.errors import MLServerError
from mlserver.types import InferenceRequest, InferenceResponse, RequestInput, ResponseOutput

from benchmarks.peers.apps.work import Work


class Ensemble(MLModel):
    """Inputs `uuid` and `image`, one row per request; outputs `id` and `answer`."""

    async def load(self) -> bool:
        self.work = Work()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        columns: dict[str, RequestInput] = {column.name: column for column in payload.inputs}
        uuids: list[str] = StringCodec.decode_input(columns["uuid"])
        images: list[str] = StringCodec.decode_input(columns["image"])
        requests = [{"uuid": uuid, "image": image} for uuid, image in zip(uuids, images, strict=True)]
        try:
            answers = self.work.answer(requests)
        except ValueError as error:
            raise MLServerError(str(error), 400) from error
        return InferenceResponse(model_name=self.name, outputs=[self._ids(uuids), self._classes(answers)])

    def _ids(self, uuids: list[str]) -> ResponseOutput:
        return StringCodec.encode_output("id", uuids)

    def _classes(self, answers: list[dict[str, Any]]) -> ResponseOutput:
        values = [answer["answer"] for answer in answers]
        return ResponseOutput(name="answer", datatype="INT32", shape=[len(values), 1], data=values)

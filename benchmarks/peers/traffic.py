"""The same pictures in the form that each peer takes, and its answers read back into one form."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from benchmarks.tools.load import Traffic
from benchmarks.tools.workload import FALLBACK_ANSWER, Sample
from timebound.lab.load.attempts import Exchange
from timebound.lab.load.client import Reply

# Such that decoding fails after some work: the first half of a PNG.
BROKEN_SHARE = 0.5


@dataclass(frozen=True)
class Form:
    """How a request is written and an answer read: uuid and class."""

    path: str
    before_uuid: str
    before_image: str
    end: str
    read: Callable[[Any], tuple[str, int]]


def _plain(answer: Any) -> tuple[str, int]:
    return answer["uuid"], answer["answer"]


def _v2(answer: Any) -> tuple[str, int]:
    columns = {column["name"]: column["data"] for column in answer["outputs"]}
    return columns["id"][0], columns["answer"][0]


PLAIN = Form("/predictions/ensemble", '{"uuid":"', '","image":"', '"}', _plain)
# What BentoML may batch takes a list.
LISTED = Form("/predictions/ensemble", '{"items":[{"uuid":"', '","image":"', '"}]}', lambda answers: _plain(answers[0]))
V2 = Form(
    "/v2/models/ensemble/infer",
    '{"inputs":[{"name":"uuid","shape":[1,1],"datatype":"BYTES","data":["',
    '"]},{"name":"image","shape":[1,1],"datatype":"BYTES","data":["',
    '"]}]}',
    _v2,
)


class PeerTraffic(Traffic):
    """The sample pictures in turn; an answer of the first k members must be right for these k."""

    # One for all instances: a uuid seen in an earlier measurement would be a repeat.
    _numbers = count()

    def __init__(self, form: Form, port: int, samples: Sequence[Sample], headers: str = "") -> None:
        super().__init__(form.path, port, headers)
        self._form = form
        self._samples = samples
        self._bodies = [self._body(sample.image) for sample in samples]

    def next(self) -> Exchange:
        number = next(self._numbers)
        which = number % len(self._samples)
        uuid = f"{number:012x}"
        start, end = self._bodies[which]
        sample = self._samples[which]
        return Exchange(b"".join((start, uuid.encode(), end)), lambda reply: self._is_right(uuid, sample, reply))

    def broken(self) -> Exchange:
        """A request whose picture ends in the middle; no answer to it is right."""
        image = self._samples[0].image
        start, end = self._body(image[: int(len(image) * BROKEN_SHARE) // 4 * 4])
        uuid = f"{next(self._numbers):012x}"
        return Exchange(b"".join((start, uuid.encode(), end)), lambda reply: False)

    def _body(self, image: str) -> tuple[bytes, bytes]:
        start, end = self._form.before_uuid.encode(), f"{self._form.before_image}{image}{self._form.end}".encode()
        return self._head(len(start) + 12 + len(end)) + start, end

    def _is_right(self, uuid: str, sample: Sample, reply: Reply) -> bool:
        quality = reply.quality
        if quality == "full":
            answer = sample.answer
        else:
            answer = sample.answers[reply.members - 1] if quality == "partial" else FALLBACK_ANSWER
        return self._form.read(json.loads(reply.body)) == (uuid, answer)

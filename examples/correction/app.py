"""Corrects a speech recogniser: up to ten candidates with their phonemes in, one sentence out, within a second.

timebound serve examples/correction
"""

from __future__ import annotations

import math
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from editing import Editor, Limits
from language import Language
from sentences import CANDIDATES, LONGEST, Alphabet, encode

import timebound as tb

HERE = Path(__file__).parent


class Correction(tb.Model):
    path = "/inference"
    deadline = 1.0
    key = "esun_uuid"
    key_ignore = ("retry", "esun_timestamp")
    max_batch = 10
    example: ClassVar[Any] = {
        "esun_uuid": "7d1c0d7e-8a52-4a39-9d0e-2f7f2b6f4c11",
        "esun_timestamp": 1654041600,
        "sentence_list": [
            "病在一定程度上透露了改革路徑",
            "並在一定程度上透露了改革路徑",
            "並在一定程度上投入了改革路徑",
        ],
        "phoneme_sequence_list": [],
        "retry": 2,
    }

    class Request(tb.Struct):
        esun_uuid: str
        sentence_list: Annotated[list[str], msgspec.Meta(min_length=1, max_length=CANDIDATES)]
        phoneme_sequence_list: list[str] = msgspec.field(default_factory=list)
        esun_timestamp: int = 0
        retry: int = 0

    def load(self) -> None:
        self.alphabet = Alphabet(HERE / "characters.tsv", HERE / "phonemes.json")
        self.editor = Editor(self.alphabet, Language(HERE / "language.npz"))
        self.limits = Limits.read(HERE / "limits.json")
        self.net = tb.onnx("corrector.onnx")

    def size(self, request: Any) -> float:
        # One row per character of the first candidate; the others add none, and `encode` reads none above LONGEST.
        length = len(request.sentence_list[_best(request)])
        return length + 1 if length <= LONGEST else math.inf

    def prepare(self, request: Any) -> Any:
        best = _best(request)
        sentences, phonemes = request.sentence_list[best:], request.phoneme_sequence_list[best:]
        if len(sentences[0]) > LONGEST:  # only where its size could not be asked for
            raise tb.BadInput(f"more than {LONGEST} characters", field="sentence_list")
        return encode(self.alphabet, sentences, phonemes)

    def infer(self, batch: Any) -> Any:
        longest = max(len(table) for table in batch)
        padded = np.zeros((len(batch), longest, batch[0].shape[1]), np.int64)
        for row, table in zip(padded, batch, strict=True):
            row[: len(table)] = table
        return self.net(padded)

    def finish(self, output: Any, request: Any) -> Any:
        return _answer(request, self.editor.corrected(request.sentence_list[_best(request)], output, self.limits))

    def fallback(self, request: Any) -> Any:
        return _answer(request, request.sentence_list[_best(request)])


def _best(request: Any) -> int:
    """The place of the first candidate that says anything: a recogniser may be at a loss for its first."""
    return next((place for place, sentence in enumerate(request.sentence_list) if sentence), 0)


def _answer(request: Any, sentence: str) -> dict[str, Any]:
    return {
        "esun_uuid": request.esun_uuid,
        "server_uuid": str(uuid.uuid4()),
        "server_timestamp": int(time.time()),
        "answer": sentence,
    }

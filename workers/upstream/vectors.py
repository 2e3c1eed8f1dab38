"""Builds the result of a job for embeddings from the response that the upstream sends; pure."""

import base64
import binascii
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workers.upstream.answer import Counts, read_counts
from workers.upstream.pieces import AnswerInvalid

#: The most bytes of a response: 2,048 vectors of 4,096 dimensions in base64 have 45 MB.
_MAX_BYTES = 64 << 20


@dataclass
class Vectors:
    """The vectors of one job with this many `inputs`. They have no text and no generated tokens."""

    inputs: int
    max_bytes: int = _MAX_BYTES
    counts: Counts = field(default_factory=Counts)
    finish_reason: str = ""
    text: str = ""
    completion_tokens: int = 0
    reported: int = 0
    has_begun: bool = False
    has_role: bool = False
    is_too_long: bool = False
    _vectors: list[str] = field(default_factory=list)

    def add_chunk(self, _chunk: Any) -> str | None:
        """Raise AnswerInvalid, because embeddings do not come as a stream."""
        raise AnswerInvalid("the upstream sent a stream instead of embeddings")

    def add_text(self, _index: int, _field: str, _text: str) -> str | None:
        return self.add_chunk(None)

    def add_whole(self, response: Any) -> str:
        """Read the vectors of a response, and return "". Raises AnswerInvalid."""
        data = response.get("data") if isinstance(response, dict) else None
        if not isinstance(data, list) or len(data) != self.inputs:
            raise AnswerInvalid(f"the upstream's response does not have the vectors of {self.inputs} inputs")
        vectors: dict[int, str] = {}
        for position, item in enumerate(data):
            index = item.get("index", position) if isinstance(item, dict) else None
            if type(index) is not int or index in vectors or not 0 <= index < self.inputs:
                raise AnswerInvalid("the upstream's response does not have one vector for each input")
            vectors[index] = _as_base64(item.get("embedding"))
        self._vectors = [vectors[index] for index in range(self.inputs)]
        self.counts = read_counts(response.get("usage"))
        self.finish_reason, self.has_begun = "stop", True
        return ""

    def end(self, reason: str) -> None:
        """Do nothing: vectors arrive in one response."""

    def extra(self) -> dict[str, Any]:
        """Return the vectors as the job's result stores them: base64 of little-endian float32 numbers."""
        return {"embeddings": self._vectors} if self._vectors else {}


def _as_base64(vector: Any) -> str:
    """Convert a vector, which servers send as numbers or as base64. Raises AnswerInvalid."""
    try:
        if isinstance(vector, str):
            numbers = np.frombuffer(base64.b64decode(vector, validate=True), "<f4")
        elif isinstance(vector, list) and all(type(number) in {int, float} for number in vector):
            numbers = np.asarray(vector, "<f4")
        else:
            numbers = np.empty(0, "<f4")
    except (binascii.Error, ValueError, OverflowError):
        numbers = np.empty(0, "<f4")
    if not len(numbers) or not math.isfinite(float(np.abs(numbers).max())):
        raise AnswerInvalid("the upstream sent an embedding that is not a list of numbers")
    return base64.b64encode(numbers.tobytes()).decode()

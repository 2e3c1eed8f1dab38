"""A text divided into titled chunks: how tokens are counted, how long chunks are, and how many there may be."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

from shared.jobs import cost
from shared.jobs.prompt_weights import read_weights
from web.retrieval.chunking import divide

#: After how many chunks other greenlets run: each takes some tenths of a millisecond.
_CHUNKS_A_TURN = 4


class TooManyChunks(Exception):
    """The text has more chunks than a document may have."""


@dataclass(frozen=True, slots=True)
class Division:
    """The wish for the chunks of a text, as plain values that a process can be sent."""

    chunk_tokens: int
    overlap_tokens: int
    #: The most chunks.
    most: int
    #: How tokens are counted: by words, or by measured weights as a worker publishes them, or by bytes.
    words: bool = False
    weights: str = ""
    tokens_per_byte: float = cost.TOKENS_PER_BYTE
    #: Whether counts are whole numbers of at least 1, as those of models.
    whole: bool = False

    @classmethod
    def read(cls, value: dict[str, Any]) -> Self:
        """Return what `dump` has written."""
        return cls(**value)

    def dump(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return asdict(self)

    def counter(self) -> Callable[[str], float]:
        """Return the function that estimates the tokens of a text."""
        words, per_byte, weights = self.words, self.tokens_per_byte, read_weights(self.weights)

        def count_whole(text: str) -> float:
            return cost.estimate({"input": [text]}, words=words, tokens_per_byte=per_byte, weights=weights)

        def count_bytes(text: str) -> float:
            return per_byte * len(text.encode())

        return count_whole if self.whole else count_bytes


def titled_chunks(text: str, division: Division) -> list[tuple[str, int]]:
    """Return the chunks of a text, each with its tokens. Raises TooManyChunks.

    A chunk begins with the titles of the sections that it is in, which its own text often does not repeat.
    """
    count, chunks = division.counter(), list[tuple[str, int]]()
    for chunk in divide(text, count, division.chunk_tokens, division.overlap_tokens):
        titled = f"{chunk.section}\n{chunk.text}" if chunk.section else chunk.text
        chunks.append((titled, max(1, round(count(titled)))))
        if len(chunks) > division.most:
            raise TooManyChunks
        if len(chunks) % _CHUNKS_A_TURN == 0:
            time.sleep(0)
    return chunks

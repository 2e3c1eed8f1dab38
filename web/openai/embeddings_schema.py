"""Validate the body of `POST /v1/embeddings`, and convert the vectors to OpenAI's response; pure functions."""

import base64
import sys
from array import array
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from shared.jobs.job import JobView, Usage
from web.api.body import NulFreeText
from web.api.request_schema import QueueFields, TokenIds, read_inputs
from web.openai.accepted_fields import OpenAIFields

#: How many inputs a request may have. This is also OpenAI's maximum, and clients send batches of up to that size.
MAX_INPUTS = 2048


def _as_inputs(value: Any) -> list[str | list[int]]:
    return read_inputs(value, "input", MAX_INPUTS)


_OneText = Annotated[NulFreeText, Field(min_length=1)]
Inputs = Annotated[
    list[str | list[int]],
    # It checks everything, so pydantic does not check the items once more.
    PlainValidator(
        _as_inputs,
        json_schema_input_type=_OneText
        | TokenIds
        | Annotated[list[_OneText | TokenIds], Field(min_length=1, max_length=MAX_INPUTS)],
    ),
]


class EmbeddingsBody(OpenAIFields, QueueFields):
    """The body of `POST /v1/embeddings`. One job embeds all its inputs."""

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        None,
        ge=1,
        description="at most the model's own number of dimensions: vectors are cut to this number of dimensions, and "
        "normalized again; a model that another server serves may allow other numbers",
    )

    def payload(self, *, forwards: bool) -> dict[str, Any]:
        """Return the payload that the engine reads. `forwards` is whether an upstream serves the model."""
        if self.dimensions is None:
            return {"input": self.input}
        wanted = {"dimensions": self.dimensions}
        return {"input": self.input} | ({"forward": wanted} if forwards else wanted)


def embeddings_json(view: JobView, encoding: Literal["float", "base64"]) -> dict[str, Any]:
    """Return the response for a job that has succeeded, with its vectors in the order of the inputs."""
    vectors: list[str] = view.extra.get("embeddings", [])
    tokens = (view.usage or Usage()).prompt_tokens
    return {
        "object": "list",
        "model": view.model,
        "data": [
            {
                "object": "embedding",
                "index": i,
                "embedding": vector if encoding == "base64" else numbers_of(vector).tolist(),
            }
            for i, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def numbers_of(vector: str) -> "array[float]":
    """Decode a vector of little-endian float32 numbers from base64."""
    numbers = array("f", base64.b64decode(vector))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers

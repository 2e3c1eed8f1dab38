"""Validate the body of `POST /v1/embeddings`, and convert the vectors to OpenAI's response; pure functions."""

import base64
import sys
from array import array
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator

from shared.jobs.job import JobView
from web.api.body import Body, NulFreeText
from web.api.body_sizes import check_sizes
from web.api.ignored import NotesIgnored
from web.api.inputs import read_inputs
from web.api.request_schema import MAX_MS, MAX_TOKEN_ID, PRIVATE, Priority, ReturnTicket
from web.openai.accepted_fields import supported_fields

#: How many inputs a request may have. This is also OpenAI's maximum, and clients send batches of up to that size.
MAX_INPUTS = 2048


def _as_inputs(value: Any) -> list[str | list[int]]:
    return read_inputs(value, "input", MAX_INPUTS)


_OneText = Annotated[NulFreeText, Field(min_length=1)]
_Ids = Annotated[list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]], Field(min_length=1)]
Inputs = Annotated[
    list[str | list[int]],
    # It checks everything, so pydantic does not check the items once more.
    PlainValidator(
        _as_inputs,
        json_schema_input_type=_OneText | _Ids | Annotated[list[_OneText | _Ids], Field(min_length=1, max_length=2048)],
    ),
]


class EmbeddingsBody(NotesIgnored, Body):
    """The body of `POST /v1/embeddings`. One job embeds all its inputs."""

    input: Inputs
    model: Annotated[NulFreeText, Field(min_length=1, max_length=200)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        None,
        ge=1,
        description="at most the model's own number of dimensions: vectors are cut to this number of dimensions, and "
        "normalized again; a model that another server serves may allow other numbers",
    )
    deadline_ms: int | None = Field(
        None, ge=1, description="the deadline in ms from now; with OpenAI's package, set it in extra_body"
    )
    start_within_ms: int | None = Field(None, ge=1, le=MAX_MS)
    return_ticket: ReturnTicket | None = None
    private: bool = Field(default=False, description=PRIVATE)
    priority: Priority = 0

    @model_validator(mode="before")
    @classmethod
    def _keep_supported_fields(cls, value: Any) -> Any:
        check_sizes(value, {})
        return supported_fields(value, frozenset(cls.model_fields)) if isinstance(value, dict) else value

    def payload(self, *, forwards: bool) -> dict[str, Any]:
        """Return the payload that the engine reads. `forwards` is whether an upstream serves the model."""
        if self.dimensions is None:
            return {"input": self.input}
        wanted = {"dimensions": self.dimensions}
        return {"input": self.input} | ({"forward": wanted} if forwards else wanted)


def embeddings_json(view: JobView, encoding: Literal["float", "base64"]) -> dict[str, Any]:
    """Return the response for a job that has succeeded, with its vectors in the order of the inputs."""
    vectors: list[str] = view.extra.get("embeddings", [])
    tokens = view.usage.prompt_tokens if view.usage is not None else 0
    return {
        "object": "list",
        "model": view.model,
        "data": [
            {"object": "embedding", "index": i, "embedding": vector if encoding == "base64" else _numbers(vector)}
            for i, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _numbers(vector: str) -> list[float]:
    """Decode a vector of little-endian float32 numbers from base64."""
    numbers = array("f", base64.b64decode(vector))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()

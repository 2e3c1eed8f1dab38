"""Validate the body of `POST /v1/embeddings`, and convert the vectors to OpenAI's response; pure functions."""

import base64
import sys
from array import array
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from shared.jobs.job import JobView
from web.api.request_schema import MAX_MS, Body, NulFreeText
from web.http.api_errors import quoted
from web.openai.chat_schema import supported_fields

#: How many inputs a request may have. This is also OpenAI's maximum, and clients send batches of up to that size.
MAX_INPUTS = 2048
#: The largest token id that the door accepts, far above real ones. The engine checks ids against its vocabulary.
_MAX_TOKEN_ID = 2**31 - 1


def _as_inputs(value: Any) -> list[str | list[int]]:
    """Convert a text, a list of texts, a list of token ids or a list of such lists to a list of inputs."""
    inputs = value if isinstance(value, list) else [value]
    if inputs and all(_is_token(item) for item in inputs):
        inputs = [inputs]
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise ValueError(f"input contains {len(inputs)} texts; 1 to {MAX_INPUTS} are allowed")
    for i, item in enumerate(inputs):
        where = f"input[{i}]" if isinstance(value, list) else "input"
        if isinstance(item, str):
            if not item or "\0" in item:
                raise ValueError(f"{where} is empty or contains a NUL character (\\u0000)")
        elif not isinstance(item, list) or not item or not all(_is_token(token) for token in item):
            raise ValueError(f"{where}={quoted(item)} is neither a text nor a list of token ids")
    return inputs


def _is_token(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _MAX_TOKEN_ID


Inputs = Annotated[
    list[str | list[int]],
    BeforeValidator(_as_inputs, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]


class EmbeddingsBody(Body):
    """The body of `POST /v1/embeddings`. One job embeds all its inputs."""

    input: Inputs
    model: Annotated[NulFreeText, Field(min_length=1, max_length=200)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        None, ge=1, description="must be the model's own number of dimensions, because vectors are not shortened"
    )
    deadline_ms: int | None = Field(
        None, ge=1, description="the deadline in ms from now; with OpenAI's package, set it in extra_body"
    )
    start_within_ms: int | None = Field(None, ge=1, le=MAX_MS)

    @model_validator(mode="before")
    @classmethod
    def _keep_supported_fields(cls, value: Any) -> Any:
        return supported_fields(value, frozenset(cls.model_fields)) if isinstance(value, dict) else value

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        return {"input": self.input}


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

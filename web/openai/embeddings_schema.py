"""`POST /v1/embeddings`: body → inputs, and vectors → OpenAI's answer; pure."""

import base64
import sys
from array import array
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from shared.jobs.job import JobView
from web.api.request_schema import MAX_MS, Body, Clean
from web.http.api_errors import quoted
from web.openai.chat_schema import served_fields

#: As many as OpenAI takes; clients send their texts in batches of up to so many.
MAX_INPUTS = 2048
#: Larger numbers are no token of any vocabulary; the engine knows its own.
_MOST_TOKEN_ID = 2**31 - 1


def _inputs(value: Any) -> list[str | list[int]]:
    """One text, several, one list of token ids or several: a list of texts and lists of ids."""
    inputs = value if isinstance(value, list) else [value]
    if inputs and all(_is_token(item) for item in inputs):
        inputs = [inputs]
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise ValueError(f"input holds {len(inputs)} texts; 1 to {MAX_INPUTS} are taken")
    for i, item in enumerate(inputs):
        where = f"input[{i}]" if isinstance(value, list) else "input"
        if isinstance(item, str):
            if not item or "\0" in item:
                raise ValueError(f"{where} is empty, or holds a NUL character (\\u0000)")
        elif not isinstance(item, list) or not item or not all(_is_token(token) for token in item):
            raise ValueError(f"{where}={quoted(item)} is neither a text nor a list of token ids")
    return inputs


def _is_token(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _MOST_TOKEN_ID


Inputs = Annotated[
    list[str | list[int]],
    BeforeValidator(_inputs, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]


class EmbeddingsBody(Body):
    """Texts to embed: all of them are one job."""

    input: Inputs
    model: Annotated[Clean, Field(min_length=1, max_length=200)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="the model's own number, if any: vectors are not cut")
    deadline_ms: int | None = Field(None, ge=1, description="patience; OpenAI's package sends it in extra_body")
    start_within_ms: int | None = Field(None, ge=1, le=MAX_MS)

    @model_validator(mode="before")
    @classmethod
    def _served(cls, value: Any) -> Any:
        return served_fields(value, frozenset(cls.model_fields)) if isinstance(value, dict) else value

    def payload(self) -> dict[str, Any]:
        """What the engine reads."""
        return {"input": self.input}


def embeddings_json(view: JobView, encoding: Literal["float", "base64"]) -> dict[str, Any]:
    """The answer of a job that has succeeded: its vectors in the order of the inputs."""
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
    """The numbers in base64 of little-endian float32."""
    numbers = array("f", base64.b64decode(vector))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()

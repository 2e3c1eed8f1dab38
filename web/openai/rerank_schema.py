"""Validate the body of `POST /v1/rerank`, and convert the scores to a response in Jina's form; pure functions."""

from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from shared.jobs.job import JobView, Usage
from web.api.body import Body, NulFreeText
from web.api.request_schema import QueueFields
from web.openai.accepted_fields import OpenAIFields

#: How many documents a request may have, and how many characters its query may have. The model reads the query again
#: with each document, so a long query costs as much as many documents.
MAX_DOCUMENTS, MAX_QUERY = 2048, 16_384


def _as_texts(value: Any) -> Any:
    """Return the documents as texts: some clients send objects with the field `text`."""
    if not isinstance(value, list):
        return value
    return [item["text"] if isinstance(item, dict) and item.keys() == {"text"} else item for item in value]


class _Document(Body):
    """A document that is sent as an object."""

    text: Annotated[NulFreeText, Field(min_length=1)]


_Text = Annotated[NulFreeText, Field(min_length=1)]
_Bounds = Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)
Documents = Annotated[
    list[_Text],
    _Bounds,
    BeforeValidator(_as_texts, json_schema_input_type=Annotated[list[_Text | _Document], _Bounds]),
]


class RerankBody(OpenAIFields, QueueFields):
    """The body of `POST /v1/rerank`. One job scores all its documents."""

    sizes = MappingProxyType({"documents": MAX_DOCUMENTS})

    query: Annotated[NulFreeText, Field(min_length=1, max_length=MAX_QUERY)]
    documents: Documents
    top_n: int | None = Field(None, ge=1, description="return only this many of the best documents")
    return_documents: bool = Field(default=False, description="true: return the texts of the documents too")
    truncation: bool = Field(
        default=False, description="true: cut documents that do not fit into the context, instead of an error"
    )

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        return {"query": self.query, "input": self.documents} | ({"truncate": True} if self.truncation else {})


def rerank_json(view: JobView, body: RerankBody) -> dict[str, Any]:
    """Return the response for a job that has succeeded: the documents by their scores, the best first."""
    scores: list[float] = view.extra.get("scores", [])
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    tokens = (view.usage or Usage()).prompt_tokens
    return {
        "id": "rerank-" + view.id,
        "object": "list",
        "model": view.model,
        "results": [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": body.documents[index]}} if body.return_documents else {})
            for index in best
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }

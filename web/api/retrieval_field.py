"""The field `retrieval` of a request: the collection from which passages go into its prompt; pure functions."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from shared.retrieval.errors import InvalidFilter, InvalidInput
from shared.retrieval.filters import Filter, parse_filter
from shared.retrieval.records import MAX_NAME, check_name
from web.api.body import Body, NulFreeText

#: The most passages of a prompt, and how many there are unless the request says otherwise.
MAX_PASSAGES, DEFAULT_PASSAGES = 32, 6
#: The longest query in characters, and the longest time in ms that a request may give to its retrieval.
MAX_QUERY_CHARS, MAX_BUDGET_MS = 4_000, 10_000


def _check_name(value: str) -> str:
    try:
        return check_name("collection", value, MAX_NAME)
    except InvalidInput as error:
        raise ValueError(f"retrieval.{error}") from None


def _check_filter(value: dict[str, Any]) -> dict[str, Any]:
    try:
        parse_filter(value)
    except InvalidFilter as error:
        raise ValueError(f"retrieval.{error}") from None
    return value


class Rerank(Body):
    """The object `rerank` of a search."""

    model: Annotated[NulFreeText, Field(min_length=1, max_length=200)] = Field(description="a model that ranks")


class Retrieval(Body):
    """The object `retrieval`."""

    collection: Annotated[
        NulFreeText, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME}), AfterValidator(_check_name)
    ] = Field(description="the tenant's collection whose passages go into the prompt")
    k: int = Field(DEFAULT_PASSAGES, ge=1, le=MAX_PASSAGES, description="the most passages")
    query: Annotated[NulFreeText, Field(min_length=1, max_length=MAX_QUERY_CHARS)] | None = Field(
        None, description="what to search for; null: the user's last message, or the prompt"
    )
    filter: Annotated[dict[str, Any], AfterValidator(_check_filter)] | None = Field(
        None, description='a comparison of metadata, such as {"type": "eq", "key": "team", "value": "blue"}'
    )
    budget_ms: int | None = Field(
        None, ge=1, le=MAX_BUDGET_MS, description="the longest time for the search; null: PENSTOCK_RETRIEVAL_BUDGET_MS"
    )
    rerank: Rerank | None = Field(
        default=None, description="a model that orders what was found, in what is left of `budget_ms`"
    )
    required: bool = Field(
        default=False, description="true: an error instead of an answer without passages if the search is not possible"
    )

    @property
    def field(self) -> str:
        """The name of the field in errors."""
        return "retrieval"

    @property
    def reranker(self) -> str | None:
        """The name of the model that orders what was found."""
        return None if self.rerank is None else self.rerank.model

    @property
    def parsed_filter(self) -> Filter | None:
        """The filter, which was checked when the body was validated."""
        return None if self.filter is None else parse_filter(self.filter)

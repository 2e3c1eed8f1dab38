"""Read OpenAI's tool `file_search` of a request; pure functions."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from shared.retrieval.errors import InvalidFilter
from shared.retrieval.filters import Filter, parse_filter
from shared.retrieval.records import MAX_PASSAGES
from web.api.body import MAX_FIELDS, Body, NulFreeText
from web.api.file_search import FileSearch
from web.api.retrieval_field import DEFAULT_PASSAGES
from web.http.api_errors import FieldError, field_errors, invalid, invalid_field, invalid_value
from web.openai.accepted_fields import present, unsupported

#: The most vector stores of a tool: each is searched by itself, within the one budget.
MAX_STORES = 4


class HybridWeights(Body):
    """How much the two halves of a search count. Here they always count the same."""

    embedding_weight: float = Field(ge=0)
    text_weight: float = Field(ge=0)


class RankingOptions(Body):
    """The field `ranking_options`. There is one ranker, which both names stand for."""

    ranker: Literal["auto", "default-2024-11-15"] | None = None
    score_threshold: float = Field(0.0, ge=0, le=1)
    hybrid_search: HybridWeights | None = None


class FileSearchTool(Body):
    """The tool `file_search`: the vector stores from which passages go into the prompt."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[
        list[Annotated[NulFreeText, Field(min_length=1, max_length=64)]], Field(min_length=1, max_length=MAX_STORES)
    ]
    max_num_results: int = Field(DEFAULT_PASSAGES, ge=1, le=MAX_PASSAGES, description="the most passages")
    filters: dict[str, Any] | None = None
    ranking_options: RankingOptions | None = None


def read_file_search(given: dict[str, Any], where: str, *, shows_results: bool, required: bool) -> FileSearch:
    """Return the search that a tool asks for; `where` is its path in the body. Raises ApiError, which names the field.

    As everywhere in OpenAI's API, a field that is null is treated as absent.
    """
    if len(given) > MAX_FIELDS:
        raise invalid_field(where, f"{where} has {len(given)} fields; at most {MAX_FIELDS} are allowed")
    value = present(given)
    if isinstance(ranking := value.get("ranking_options"), dict):
        value["ranking_options"] = present(ranking)
    ids = value.get("vector_store_ids")
    if isinstance(ids, list) and len(ids) > MAX_STORES:
        name = f"{where}.vector_store_ids"
        raise invalid_field(name, f"{name} has {len(ids)} items; at most {MAX_STORES} are allowed")
    try:
        tool = FileSearchTool.model_validate(value)
    except ValidationError as error:
        raise invalid_value([_inside(where, each) for each in field_errors(error)]) from None
    stores = tuple(tool.vector_store_ids)
    repeated = next((each for at, each in enumerate(stores) if each in stores[:at]), None)
    if repeated is not None:
        raise invalid(f"{where}.vector_store_ids", repeated, "an id that occurs only once")
    options = tool.ranking_options
    _check_weights(options.hybrid_search if options else None, f"{where}.ranking_options.hybrid_search")
    return FileSearch(
        stores,
        where,
        tool.max_num_results,
        _read_filter(tool.filters, where),
        options.score_threshold if options else 0.0,
        shows_results=shows_results,
        required=required,
    )


def _inside(where: str, error: FieldError) -> FieldError:
    """Return an error with the path of its field in the body."""
    path = f"{where}.{error.param}" if error.param else where
    return FieldError(path, error.message.replace(error.param, path, 1) if error.param else f"{where}: {error.message}")


def _check_weights(weights: HybridWeights | None, where: str) -> None:
    if weights is not None and weights.embedding_weight != weights.text_weight:
        shown = f"embedding_weight={weights.embedding_weight} and text_weight={weights.text_weight}"
        raise unsupported(where, f"{shown} were requested, and only equal weights are accepted")


def _read_filter(filters: dict[str, Any] | None, where: str) -> Filter | None:
    if filters is None:
        return None
    try:
        return parse_filter(filters)
    except InvalidFilter as error:
        # Its paths begin with `filter`, the name of the field in Penstock's own object.
        path = f"{where}.filters{error.field.removeprefix('filter')}"
        raise invalid_field(path, f"{where}.filters{str(error).removeprefix('filter')}") from None

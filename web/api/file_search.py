"""OpenAI's tool `file_search`: the search of a request, and its traces in the job and the answer; pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from shared.jobs.fewer_passages import PASSAGES
from shared.jobs.job import JobView
from shared.retrieval.filters import Filter
from shared.retrieval.records import Passage

#: The field of a job's form with the files, and that of its payload with the texts: the form outlives the request.
FIELD = "file_search"
#: How many digits of a score clients get.
_DIGITS = 4

SearchStatus = Literal["completed", "failed"]


@dataclass(frozen=True)
class FileSearch:
    """A search in vector stores, for the user's last message."""

    #: The ids of the stores, and the path of the tool in the body.
    stores: tuple[str, ...]
    field: str
    k: int
    parsed_filter: Filter | None
    #: Passages with a lower score are left out.
    threshold: float
    #: Whether the answer has the texts of the passages.
    shows_results: bool
    #: Whether the request is refused if the search is not possible.
    required: bool = False
    query: None = None
    budget_ms: None = None


@dataclass(frozen=True)
class CitedFile:
    """The file of a passage."""

    id: str
    name: str


@dataclass(frozen=True)
class SearchedFiles:
    """The search as the form of its job has it: the files of the passages in the prompt, by their numbers."""

    files: tuple[CitedFile, ...]
    status: SearchStatus
    shows_results: bool
    #: How many passages the prompt had when the job was admitted: its worker may leave some out.
    admitted: int

    def form(self) -> dict[str, Any]:
        """Return the field of the form."""
        files = [[each.id, each.name] for each in self.files]
        return {FIELD: {"files": files, "status": self.status, "results": self.shows_results}}

    @classmethod
    def read(cls, view: JobView) -> Self | None:
        """Return what a job's form says; None if the job asked for no search, or if its form was spoiled."""
        kept: Any = view.form.get(FIELD)
        try:
            files = tuple(CitedFile(str(file_id), str(name)) for file_id, name in kept["files"])
            status: SearchStatus = "failed" if kept["status"] == "failed" else "completed"
            used = view.extra.get(PASSAGES)
            cut = files[: max(0, used)] if isinstance(used, int) else files
            return cls(cut, status, bool(kept["results"]), len(files))
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True)
class SearchTexts:
    """The texts of a search, which the payload of its job has: the query, and the results if they were asked for."""

    queries: tuple[str, ...] = ()
    results: tuple[dict[str, Any], ...] | None = None

    def payload(self) -> dict[str, Any]:
        """Return the field of the payload."""
        results = None if self.results is None else list(self.results)
        return {FIELD: {"queries": list(self.queries), "results": results}}

    @classmethod
    def read(cls, payload: Mapping[str, Any] | None) -> Self:
        """Return the texts in a payload; none if there is no payload any more, or if it was spoiled."""
        kept: Any = None if payload is None else payload.get(FIELD)
        if not isinstance(kept, dict):
            return cls()
        queries, results = kept.get("queries"), kept.get("results")
        return cls(
            tuple(map(str, queries)) if isinstance(queries, list) else (),
            tuple(each for each in results if isinstance(each, dict)) if isinstance(results, list) else None,
        )


#: Of a search whose texts are gone, or that has not ended.
NO_TEXTS = SearchTexts()


def file_of(passage: Passage) -> CitedFile:
    """Return the file of a passage. A document that was loaded by its id has no other name."""
    return CitedFile(passage.document_id, passage.filename or passage.document_id)


def results_of(passages: Sequence[Passage]) -> tuple[dict[str, Any], ...]:
    """Return the passages as the results of a search in OpenAI's API."""
    return tuple(
        {
            "file_id": each.document_id,
            "filename": file_of(each).name,
            "score": round(each.score, _DIGITS),
            "attributes": {name: _attribute(value) for name, value in each.metadata.items()},
            "text": each.text,
        }
        for each in passages
    )


def _attribute(value: Any) -> Any:
    """Return a value of a document's metadata as an attribute, which is a text, a number or a boolean."""
    return value if isinstance(value, str | int | float) else ", ".join(map(str, value))

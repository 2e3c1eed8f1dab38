"""The passages of a job and what was left out, in its form and in the answers of the API; pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from shared.jobs.fewer_passages import PASSAGES
from shared.jobs.job import JobView
from shared.jobs.job_history import Change

#: The field of a job's form.
FIELD = "retrieval"
#: How many digits of a score clients get.
_DIGITS = 4


@dataclass(frozen=True)
class Citation:
    """A passage of the prompt: a chunk of a document, and how well it matches the query."""

    document: str
    chunk: int
    score: float

    def as_dict(self) -> dict[str, str | int | float]:
        """Return the citation as the JSON object that answers contain."""
        return {"document": self.document, "chunk": self.chunk, "score": self.score}


@dataclass(frozen=True)
class Retrieved:
    """The passages of a prompt in their order, what retrieval left out, and how many passages it had found.

    `took_ms` is how long it took; 0 for jobs of doors that did not store it.
    """

    citations: tuple[Citation, ...]
    changes: tuple[Change, ...] = ()
    found: int = 0
    took_ms: int = 0

    def form(self) -> dict[str, Any]:
        """Return the field of the form, as small as possible: it is kept with the job."""
        cited = [[each.document, each.chunk, round(each.score, _DIGITS)] for each in self.citations]
        changed = [[change.what, change.before, change.after, change.why] for change in self.changes]
        took = {"ms": self.took_ms} if self.took_ms else {}
        return {FIELD: {"cited": cited, "changed": changed, "found": self.found} | took}

    @classmethod
    def read(cls, view: JobView) -> Self | None:
        """Return what a job's form says; None if the job asked for no retrieval, or if its form was spoiled."""
        kept: Any = view.form.get(FIELD)
        try:
            cited = tuple(Citation(str(one), int(two), float(three)) for one, two, three in kept["cited"])
            changes = [Change(str(what), before, after, str(why)) for what, before, after, why in kept["changed"]]
            found, took_ms = int(kept["found"]), int(kept.get("ms", 0))
        except (ArithmeticError, KeyError, TypeError, ValueError):
            return None
        if view.fewer:
            changes.append(Change("passages", found, len(cited), view.fewer))
        # The worker's count of the tokens was greater than the door's estimate.
        used = view.extra.get(PASSAGES)
        if isinstance(used, int) and used < len(cited):
            changes.append(Change("passages", len(cited), used, "context"))
            cited = cited[: max(0, used)]
        return cls(cited, tuple(changes), found, max(0, took_ms))


def without_time(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return a form for another job with the same passages: without the time that it took to find them."""
    kept = form.get(FIELD)
    if not isinstance(kept, dict):
        return dict(form)
    return {**form, FIELD: {name: value for name, value in kept.items() if name != "ms"}}


def changes_of(view: JobView) -> Sequence[Change]:
    """Return what was left out of a job's retrieval and of its answer."""
    retrieved = Retrieved.read(view)
    return [*(retrieved.changes if retrieved else ()), *view.degraded]


def citations_json(view: JobView) -> dict[str, Any]:
    """Return a dict with the field `citations`, the passages by their numbers; empty without retrieval."""
    retrieved = Retrieved.read(view)
    return {} if retrieved is None else {"citations": [each.as_dict() for each in retrieved.citations]}

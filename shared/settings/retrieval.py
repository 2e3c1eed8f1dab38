"""The settings of the retrieval step: its budget of time, and the cache of passages."""

from dataclasses import dataclass

from shared.settings.setting import number


@dataclass(frozen=True)
class RetrievalSettings:
    """The search for passages, and their cache."""

    retrieval_budget_ms: int = number(
        40,
        "ms",
        (1, 10_000),
        "time for the search of a request's passages, at most a tenth of its deadline; then it gets cached ones, fewer "
        "or none",
    )
    cache_ttl_s: int = number(
        300, "s", (1, 86_400), "how long the passages that were found for a query are kept; a load makes them stale"
    )
    cache_bytes: int = number(
        1_048_576,
        "bytes",
        (4_096, 1_073_741_824),
        "what the kept passages of one tenant may take; those of all, a sixteenth of the store's memory",
    )

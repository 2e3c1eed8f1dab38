"""The settings of the retrieval step: its budget of time, the cache of passages, and the semantic cache."""

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
    semantic_cache_similarity: float = number(
        0.85,
        "cosine",
        (0.5, 1.0),
        "an earlier prompt's answer is used only if the vectors are at least so similar, and the guard agrees",
    )
    semantic_cache_ttl_s: int = number(
        3_600, "s", (1, 604_800), "how long answers are kept in the semantic cache of a tenant that has it"
    )
    semantic_cache_entries: int = number(
        5_000,
        "answers",
        (1, 20_000),
        "the most answers in the semantic cache of one tenant; a look-up compares them all",
    )
    semantic_cache_bytes: int = number(
        33_554_432,
        "bytes",
        (4_096, 1_073_741_824),
        "what these answers may take; those of all tenants, a sixteenth of the store's memory",
    )

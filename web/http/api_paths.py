"""Which paths belong to the API, whose requests need a key."""

#: The paths of other servers' rankings, which their clients use beside /v1/rerank.
_RANKINGS = frozenset({"/rerank", "/v2/rerank"})


def is_api_path(path: str) -> bool:
    """Return whether a path belongs to the API."""
    return path.startswith("/v1/") or path in _RANKINGS

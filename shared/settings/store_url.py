"""The forms of the store's URL: other programs' schemes mean the same as those of redis-py, which knows no others."""

import re

#: Other names of schemes.
_SAME_AS = {
    "valkey": "redis",
    "valkeys": "rediss",
    "redis+unix": "unix",
    "redis+socket": "unix",
    "valkey+unix": "unix",
    "valkey+socket": "unix",
    "valkey+sentinel": "redis+sentinel",
    "valkey+cluster": "redis+cluster",
}
_SCHEMES = "|".join(
    re.escape(scheme) for scheme in ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", *_SAME_AS)
)
#: The beginning of the URL of a Redis or Valkey Cluster.
CLUSTER = "redis+cluster://"
#: The form of a store's URL. A socket may also be named without slashes before its path.
PATTERN = rf"(?i:({_SCHEMES})://|unix:/).*"


def is_cluster_url(url: str) -> bool:
    return normal_store_url(url).startswith(CLUSTER)


def normal_store_url(url: str) -> str:
    """Return the URL with the scheme that the library knows. Any other text is returned unchanged."""
    scheme, colon, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme == "unix" and not rest.startswith("//"):
        rest = f"//{rest}"
    return f"{_SAME_AS.get(scheme, scheme)}:{rest}" if colon and rest.startswith("//") else url

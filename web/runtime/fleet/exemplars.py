"""Read the newest job in each bucket of the histograms, which OpenMetrics shows as an exemplar."""

import re
from typing import Any

import redis
from prometheus_client.samples import Exemplar

from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults
from web.runtime.fleet.metrics import in_turns

#: The text that observe in shared/lua/lib/ledgers/stats.lua writes: the job's id, its time in µs, and when it was
#: observed, in ms.
_STORED = re.compile(r"([\w-]{1,64}) (\d{1,15}) (\d{1,15})\Z", re.ASCII)


def read_exemplars(client: redis.Redis) -> dict[str, Exemplar]:
    """Return the exemplars by the names of their buckets. Raises StoreUnavailable.

    Values that another program has put in their place are left out.
    """
    try:
        with store_faults(client):
            stored: Any = client.hgetall(keys.exemplars())
    except redis.ResponseError:
        return {}
    found = {}
    for bucket, job in in_turns(stored.items()):
        match = _STORED.match(text(job))
        if match is not None:
            job_id, time_us, at_ms = match.groups()
            found[text(bucket)] = Exemplar({"job_id": job_id}, int(time_us) / 1_000_000, int(at_ms) / 1000)
    return found

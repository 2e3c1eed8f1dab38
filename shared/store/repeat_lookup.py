"""Says whether the job, batch or file that a request asks for was made for an earlier request like it."""

from dataclasses import dataclass

import redis

from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: The code of a job that a door took back because no client got the answer to its offer (shared/lua/admit.lua).
_UNHEARD = b"unheard"


@dataclass(frozen=True)
class EarlierRequest:
    """The identity of a request for recognizing repetitions: its Idempotency-Key, or for a job also the job's id."""

    #: The digest of the Idempotency-Key; "" for none.
    idem_digest: str
    #: The id that the job would get; "" for a batch or a file.
    job_id: str = ""

    def was_admitted(self, client: redis.Redis, tenant: str) -> bool:
        """Return whether the store still has the job, batch or file. Raises StoreUnavailable."""
        with store_faults(client):
            pipe = client.pipeline(transaction=False)
            # A key that another program has spoiled answers with an error, and names nothing.
            pipe.get(keys.idem(tenant, self.idem_digest))
            (stored,) = pipe.execute(raise_on_error=False)
            named = text(stored).partition(" ")[0] if isinstance(stored, bytes) else ""
            for job_id in (self.job_id, named):
                pipe.hmget(keys.rq_job(job_id), "penstock_tenant", "penstock_code", "penstock_cancel")
            for record in (keys.batch_record(named), keys.file(named)):
                pipe.hget(record, "tenant")
            *jobs, batch_tenant, file_tenant = pipe.execute(raise_on_error=False)
        owned = tenant.encode()
        return owned in (batch_tenant, file_tenant) or any(
            isinstance(job, list) and job[0] == owned and _UNHEARD not in job[1:] for job in jobs
        )

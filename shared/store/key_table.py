"""The table of all store keys: their types, contents and lifetimes.

A key is a fixed prefix, followed by at most one variable part. The script loader (shared/store/scripts.py) passes the
prefixes to the scripts, so that a script can build the key of a job whose id it learns only while it runs. A part named
`queue` is always `<tenant>.<model slug>`.
"""

from dataclasses import dataclass
from typing import Literal

Lifetime = Literal["permanent", "ttl", "emptied", "with the job"]


@dataclass(frozen=True)
class Key:
    """One family of keys with the same prefix. If `part` is empty, `prefix` is the whole and only key."""

    name: str
    prefix: str
    #: The part after the prefix: "" (nothing), "id", "tenant", "model", "queue", "worker", "key", "execution", "day" (a
    #: date such as 2026-11-23) or "name".
    part: str
    type: Literal["hash", "zset", "list", "string", "stream", "set", "any"]
    holds: str
    #: permanent: the key never expires. ttl: it always has a TTL. emptied: Redis deletes it when its last member is
    #: removed. with the job: it has no TTL while its job is inflight, and a TTL afterwards.
    dies: Lifetime
    #: The text after the variable part. Only a key of RQ has a suffix.
    suffix: str = ""

    def of(self, part: str = "") -> str:
        """Return the key for one value of the variable part, or the only key if the family has no variable part."""
        return f"{self.prefix}{part}{self.suffix}"


TABLE: tuple[Key, ...] = (
    Key(
        "config",
        "penstock:config",
        "",
        "hash",
        "system-wide settings, format, whether the system drains, until when no lease is taken back",
        "permanent",
    ),
    Key("clock", "penstock:clock", "", "string", "clock offset for tests; absent in production", "permanent"),
    Key("mark", "penstock:mark", "", "string", "latest time of a script, and how far it is ahead of TIME", "permanent"),
    Key("inflight", "penstock:inflight", "", "zset", "all inflight jobs, ordered by admission time", "emptied"),
    Key("deadlines", "penstock:deadlines", "", "zset", "queued jobs, ordered by when they expire", "emptied"),
    Key("leases", "penstock:leases", "", "zset", "running jobs, ordered by the end of their lease", "emptied"),
    Key(
        "active",
        "penstock:active:",
        "model",
        "zset",
        "the active set (tenants, @groups), by service; of a group: <model>@<group>",
        "emptied",
    ),
    Key(
        "rows",
        "penstock:rows:",
        "model",
        "hash",
        "running jobs of each tenant and @group: computing, paused, and the batch jobs among both",
        "emptied",
    ),
    Key(
        "batch",
        "penstock:batch:",
        "model",
        "zset",
        "the batch set: those with only batch jobs queued or paused, named and ordered as in the active set",
        "emptied",
    ),
    Key("order", "penstock:order:", "queue", "zset", "a queue's jobs, by priority and latest start", "emptied"),
    Key(
        "tenant",
        "penstock:tenant:",
        "tenant",
        "hash",
        "of a tenant or @group: service by pool, queue sums, budget, policy; no TTL with a policy",
        "ttl",
    ),
    Key("groups", "penstock:groups", "", "set", "groups of tenants with a policy", "permanent"),
    Key("routes", "penstock:routes", "", "hash", "routes as JSON, by the name that clients use", "permanent"),
    Key("pools", "penstock:pools", "", "set", "models whose pools have terms: marked as local, prices", "permanent"),
    Key("spent", "penstock:spent:", "day", "hash", "what the jobs of a day (UTC) cost, by pool and by tenant", "ttl"),
    Key(
        "usage",
        "penstock:usage:",
        "day",
        "hash",
        "jobs that ended on a day (UTC) and their tokens, by tenant, key label and model; kept for 400 days",
        "ttl",
    ),
    Key("tenants", "penstock:tenants", "", "zset", "tenants admitted or with a policy, by last admission", "permanent"),
    Key("lists", "penstock:lists:", "tenant", "set", "models whose slots the tenant or @group wants", "emptied"),
    Key("jobs", "penstock:jobs:", "tenant", "zset", "a tenant's readable jobs, ordered by admission time", "ttl"),
    Key("kept", "penstock:kept:", "tenant", "hash", "bytes that a tenant's jobs take, by when they expire", "ttl"),
    Key(
        "payload",
        "penstock:payload:",
        "id",
        "string",
        "request as JSON; deleted when the job ends, or kept as long as the result of a response",
        "with the job",
    ),
    Key(
        "partial",
        "penstock:partial:",
        "id",
        "string",
        "token ids of an unfinished answer, and a seal; deleted when the job ends",
        "with the job",
    ),
    Key("result", "penstock:result:", "id", "string", "text and usage as JSON", "ttl"),
    Key("events", "penstock:events:", "id", "stream", "the events of a job, for clients that follow it", "ttl"),
    Key(
        "idem",
        "penstock:idem:",
        "name",
        "string",
        "for a tenant's Idempotency-Key: id of the job, file or batch, and body digest",
        "ttl",
    ),
    Key("supersede", "penstock:supersede:", "name", "string", "newest job id for a tenant's supersede_key", "ttl"),
    Key("file", "penstock:file:", "name", "hash", "a file's owner, name, length and lifetime", "ttl"),
    Key("file_parts", "penstock:file_parts:", "name", "hash", "a file's content, by number of the part", "ttl"),
    Key("files", "penstock:files:", "name", "zset", "a tenant's files, or `<tenant>.<purpose>`, ordered by id", "ttl"),
    Key(
        "file_bytes",
        "penstock:file_bytes:",
        "name",
        "hash",
        "bytes of files by when they expire: in the store, in a folder, of a tenant in a folder",
        "ttl",
    ),
    Key("batch_record", "penstock:batch_record:", "name", "hash", "a batch's owner, file, status and counts", "ttl"),
    Key("batch_lines", "penstock:batch_lines:", "name", "hash", "a batch's lines that are in the queue or run", "ttl"),
    Key("batch_answers", "penstock:batch_answers:", "name", "hash", "a batch's answers until they are in files", "ttl"),
    Key("batches", "penstock:batches:", "tenant", "zset", "a tenant's batches, ordered by id", "ttl"),
    Key(
        "open_batches_of", "penstock:open_batches_of:", "tenant", "set", "a tenant's batches that have not ended", "ttl"
    ),
    Key("open_batches", "penstock:open_batches", "", "zset", "batches, ordered by when they are due", "emptied"),
    Key(
        "webhook",
        "penstock:webhook:",
        "name",
        "hash",
        "an end that is to be told: where, a copy of the job or batch, tries",
        "ttl",
    ),
    Key(
        "webhooks", "penstock:webhooks", "", "zset", "webhooks that are not told yet, by when the job ended", "emptied"
    ),
    Key(
        "webhook_due", "penstock:webhook_due:", "tenant", "zset", "a tenant's webhooks, by when they are due", "emptied"
    ),
    Key(
        "webhook_turns", "penstock:webhook_turns", "", "zset", "tenants with webhooks, by when their turn is", "emptied"
    ),
    Key("webhook_secrets", "penstock:webhook_secrets", "", "hash", "the tenants' secrets for signatures", "permanent"),
    Key("wake", "penstock:wake:", "model", "list", "doorbell of a pool, on which idle workers block; capped", "ttl"),
    Key("bell", "penstock:bell:", "worker", "list", "doorbell of a worker: jobs to cancel, signs to claim", "ttl"),
    Key("worker", "penstock:worker:", "worker", "hash", "slots, KV cells, rates, last heartbeat, last claim", "ttl"),
    Key("workers", "penstock:workers", "", "zset", "workers, ordered by last heartbeat", "emptied"),
    Key("live", "penstock:live", "", "zset", "workers whose parts are counted, ordered by last heartbeat", "emptied"),
    Key("counted", "penstock:counted", "", "hash", "each live worker's part of the sums of slots and rates", "emptied"),
    Key("pool", "penstock:pool:", "model", "zset", "workers of one model, ordered by last heartbeat", "ttl"),
    Key(
        "crashes",
        "penstock:crashes:",
        "model",
        "hash",
        "workers of the last minutes that ended by a fault or fell silent: when, after how long, why",
        "ttl",
    ),
    Key("models", "penstock:models", "", "zset", "all models ever served, ordered by last heartbeat", "permanent"),
    Key("books", "penstock:books:", "model", "hash", "pool record: virtual time, sums, rates, lengths", "permanent"),
    Key("appointments", "penstock:appointments:", "model", "zset", "tenants, ordered by appointment", "permanent"),
    Key("room", "penstock:room:", "model", "hash", "smallest threshold of the last seconds, for hints", "permanent"),
    Key(
        "reservations",
        "penstock:reservations:",
        "model",
        "zset",
        "refused clients, by tenant and retry time",
        "permanent",
    ),
    Key("promises", "penstock:promises:", "model", "zset", "of format 1; sweep deletes it", "permanent"),
    Key("asked", "penstock:asked", "", "zset", "ids of recent refusals; a repeat is not counted again", "permanent"),
    Key("polls", "penstock:polls", "", "zset", "jobs that must be polled, ordered by poll deadline", "emptied"),
    Key("labels", "penstock:labels", "", "set", "tenants with a metric label of their own", "permanent"),
    Key("queues", "penstock:queues", "", "zset", "queues, ordered by when their last result expires", "emptied"),
    Key("patrol", "penstock:patrol", "", "hash", "which process reconciles, and how far; which process sweeps", "ttl"),
    Key("stats", "penstock:stats", "", "hash", "counters and histogram buckets", "permanent"),
    Key("exemplars", "penstock:exemplars", "", "hash", "the newest job in each bucket of times of jobs", "permanent"),
    Key("mended", "penstock:mended:", "name", "string", "a key or field that a script mended in the last hour", "ttl"),
    Key("notices", "penstock:notices", "", "list", "mends that no process has logged yet; capped", "ttl"),
    Key("spoiled", "penstock:spoiled:", "name", "any", "what a key held that another program had replaced", "ttl"),
    Key("keys", "penstock:keys", "", "hash", "tenant, label and expiry of each API key, by its SHA-256", "permanent"),
    Key(
        "admin_keys",
        "penstock:admin_keys",
        "",
        "hash",
        "name and expiry of admin keys, by their SHA-256",
        "permanent",
    ),
    Key(
        "admin_actions",
        "penstock:admin_actions",
        "",
        "stream",
        "audit log: the newest 10,000 admin actions",
        "permanent",
    ),
    Key("key_rates", "penstock:key_rates:", "key", "hash", "how much of its rates an API key has used", "ttl"),
    Key("key_jobs", "penstock:key_jobs:", "key", "zset", "an API key's queued jobs, ordered by expiry", "ttl"),
    Key("secret", "penstock:secret", "", "string", "the secret used to sign event tickets", "permanent"),
    Key("rq_queues", "rq:queues", "", "set", "RQ: the keys of all queues", "emptied"),
    Key("rq_queue", "rq:queue:", "queue", "list", "RQ: ids of a queue's jobs, in Penstock's order", "emptied"),
    Key("rq_job", "rq:job:", "id", "hash", "RQ: a job's record, with Penstock's own penstock_ fields", "with the job"),
    Key("rq_wip", "rq:wip:", "queue", "zset", "RQ: running jobs as <id>:<claim token>", "emptied"),
    Key("rq_finished", "rq:finished:", "queue", "zset", "RQ: succeeded jobs, ordered by deletion time", "ttl"),
    Key("rq_failed", "rq:failed:", "queue", "zset", "RQ: failed and expired jobs, ordered by deletion time", "ttl"),
    Key("rq_canceled", "rq:canceled:", "queue", "zset", "RQ: canceled jobs, ordered by deletion time", "ttl"),
    Key("rq_results", "rq:results:", "id", "stream", "RQ: how a job ended, as token counts and times", "ttl"),
    Key("rq_workers", "rq:workers", "", "set", "RQ: the keys of all workers", "emptied"),
    Key("rq_workers_of", "rq:workers:", "queue", "set", "RQ: the keys of a queue's workers", "emptied"),
    Key("rq_worker", "rq:worker:", "worker", "hash", "RQ: the record of a worker", "ttl"),
    Key(
        "rq_executions",
        "rq:worker:",
        "worker",
        "set",
        "RQ 3: the execution of the worker's current job",
        "ttl",
        suffix=":executions",
    ),
    Key(
        "rq_execution",
        "rq:execution:",
        "execution",
        "hash",
        "RQ 3: the record of the execution <id>:<claim token>",
        "ttl",
    ),
)

BY_NAME: dict[str, Key] = {key.name: key for key in TABLE}

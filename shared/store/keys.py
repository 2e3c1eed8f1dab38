"""The names of all store keys: a table of their types, contents and lifetimes, and one function for each name.

A key is a fixed prefix, followed by at most one variable part. The script loader (shared/store/scripts.py) passes the
prefixes to the scripts, so that a script can build the key of a job whose id it learns only while it runs. A part named
`queue` is always `<tenant>.<model slug>`.

To add a key: add a row to TABLE and a function at the end of this file, and regenerate docs/keys.md (`make docs`).
"""

import re
from dataclasses import dataclass
from typing import Literal

Lifetime = Literal["permanent", "ttl", "emptied", "with the job"]


@dataclass(frozen=True)
class Key:
    """One family of keys with the same prefix. If `part` is empty, `prefix` is the whole and only key."""

    name: str
    prefix: str
    #: What follows the prefix: "" (nothing), "id", "tenant", "model", "queue", "worker", "execution" or "name".
    part: str
    type: Literal["hash", "zset", "list", "string", "stream", "set"]
    holds: str
    #: permanent: the key never expires. ttl: it always has a TTL. emptied: Redis deletes it when its last member is
    #: removed. with the job: it has no TTL while its job is inflight, and a TTL afterwards.
    dies: Lifetime
    #: What follows the variable part. Only a key of RQ has a suffix.
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
        "system-wide settings, whether the system drains, and until when no lease is taken back",
        "permanent",
    ),
    Key("clock", "penstock:clock", "", "string", "clock offset for tests; absent in production", "permanent"),
    Key("inflight", "penstock:inflight", "", "zset", "all inflight jobs, ordered by admission time", "emptied"),
    Key("deadlines", "penstock:deadlines", "", "zset", "queued jobs, ordered by when they expire", "emptied"),
    Key("leases", "penstock:leases", "", "zset", "running jobs, ordered by the end of their lease", "emptied"),
    Key("active", "penstock:active:", "model", "zset", "the active set (tenants), ordered by service", "emptied"),
    Key("order", "penstock:order:", "queue", "zset", "a queue's jobs, ordered by latest start", "emptied"),
    Key("tenant", "penstock:tenant:", "tenant", "hash", "service, queue sums, policy; no TTL with a policy", "ttl"),
    Key("tenants", "penstock:tenants", "", "zset", "tenants admitted or with a policy, by last admission", "permanent"),
    Key("lists", "penstock:lists:", "tenant", "set", "models for which the tenant has queued jobs", "emptied"),
    Key("jobs", "penstock:jobs:", "tenant", "zset", "a tenant's readable jobs, ordered by admission time", "ttl"),
    Key("payload", "penstock:payload:", "id", "string", "request as JSON; deleted when the job ends", "with the job"),
    Key("result", "penstock:result:", "id", "string", "text and usage as JSON", "ttl"),
    Key("events", "penstock:events:", "id", "stream", "the events of a job, for clients that follow it", "ttl"),
    Key("idem", "penstock:idem:", "name", "string", "for a tenant's Idempotency-Key: job id and body digest", "ttl"),
    Key("supersede", "penstock:supersede:", "name", "string", "newest job id for a tenant's supersede_key", "ttl"),
    Key("wake", "penstock:wake:", "model", "list", "doorbell of a pool, on which idle workers block; capped", "ttl"),
    Key("bell", "penstock:bell:", "worker", "list", "doorbell of a worker: ids of its jobs to cancel", "ttl"),
    Key("worker", "penstock:worker:", "worker", "hash", "slots, KV cells, rates, last heartbeat, last claim", "ttl"),
    Key("workers", "penstock:workers", "", "zset", "workers, ordered by last heartbeat", "emptied"),
    Key("pool", "penstock:pool:", "model", "zset", "workers of one model, ordered by last heartbeat", "ttl"),
    Key("models", "penstock:models", "", "zset", "all models ever served, ordered by last heartbeat", "permanent"),
    Key("books", "penstock:books:", "model", "hash", "pool record: virtual time, sums, rates, lengths", "permanent"),
    Key("appointments", "penstock:appointments:", "model", "zset", "tenants, ordered by appointment", "permanent"),
    Key("promises", "penstock:promises:", "model", "zset", "tenants, ordered by retry time of last hint", "permanent"),
    Key("asked", "penstock:asked", "", "zset", "ids of recent refusals; a repeat is not counted again", "permanent"),
    Key("polls", "penstock:polls", "", "zset", "jobs that must be polled, ordered by poll deadline", "emptied"),
    Key("labels", "penstock:labels", "", "set", "tenants with a metric label of their own", "permanent"),
    Key("queues", "penstock:queues", "", "zset", "queues, ordered by when their last result expires", "emptied"),
    Key("stats", "penstock:stats", "", "hash", "counters and histogram buckets", "permanent"),
    Key("keys", "penstock:keys", "", "hash", "tenant, label and expiry of each API key, by its SHA-256", "permanent"),
    Key("secret", "penstock:secret", "", "string", "the secret used to sign event tickets", "permanent"),
    Key("rq_queues", "rq:queues", "", "set", "RQ: the keys of all queues", "emptied"),
    Key("rq_queue", "rq:queue:", "queue", "list", "RQ: ids of a queue's jobs, ordered by latest start", "emptied"),
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

_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def is_tenant_name(text: str) -> bool:
    """Return whether `text` is a valid tenant name: 1 to 64 letters, digits, `_` and `-`."""
    return _TENANT.match(text) is not None


def model_slug(model: str) -> str:
    """Return the model's name for use in keys: all characters but letters, digits, `.`, `_` and `-` become `-`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", model)


def queue_name(tenant: str, model: str) -> str:
    """Return the name of the queue of one tenant and model: `<tenant>.<model slug>`."""
    return f"{tenant}.{model_slug(model)}"


def _key(name: str, part: str = "") -> str:
    return BY_NAME[name].of(part)


def config() -> str:
    """Return the key of the HASH that holds the system-wide settings and whether the system drains."""
    return _key("config")


def clock() -> str:
    """Return the key of the STRING with the ms to add to TIME, or `=<ms>` to replace it; for tests and benchmarks."""
    return _key("clock")


def inflight() -> str:
    """Return the key of the ZSET of inflight jobs, ordered by admission time."""
    return _key("inflight")


def deadlines() -> str:
    """Return the key of the ZSET of queued jobs, ordered by the time at which they expire."""
    return _key("deadlines")


def leases() -> str:
    """Return the key of the ZSET of running jobs, ordered by the end of their lease."""
    return _key("leases")


def active(model: str) -> str:
    """Return the key of the ZSET of tenants with queued jobs for a model slug, ordered by service."""
    return _key("active", model)


def order(queue: str) -> str:
    """Return the key of the ZSET of a queue's jobs, ordered by latest start."""
    return _key("order", queue)


def tenant(name: str) -> str:
    """Return the key of the HASH with one tenant's policy, service and sums."""
    return _key("tenant", name)


def tenants() -> str:
    """Return the key of the ZSET of tenants, ordered by last admission."""
    return _key("tenants")


def lists(tenant_name: str) -> str:
    """Return the key of the SET of model slugs for which a tenant has queued jobs."""
    return _key("lists", tenant_name)


def jobs(tenant_name: str) -> str:
    """Return the key of the ZSET of a tenant's jobs that can be read, ordered by admission time."""
    return _key("jobs", tenant_name)


def payload(job_id: str) -> str:
    """Return the key of the STRING with a job's request."""
    return _key("payload", job_id)


def result(job_id: str) -> str:
    """Return the key of the STRING with a job's text and usage."""
    return _key("result", job_id)


def events(job_id: str) -> str:
    """Return the key of the STREAM of a job's events."""
    return _key("events", job_id)


def idem(tenant_name: str, digest: str) -> str:
    """Return the key of the STRING with the id of the job whose Idempotency-Key has this digest."""
    return _key("idem", f"{tenant_name}.{digest}")


def supersede(tenant_name: str, digest: str) -> str:
    """Return the key of the STRING with the id of the newest job whose supersede_key has this digest."""
    return _key("supersede", f"{tenant_name}.{digest}")


def wake(model: str) -> str:
    """Return the key of the LIST that is the doorbell of a model slug's pool, on which idle workers block."""
    return _key("wake", model)


def bell(worker_name: str) -> str:
    """Return the key of the LIST that is one worker's doorbell and holds the ids of the jobs that it must stop."""
    return _key("bell", worker_name)


def worker(name: str) -> str:
    """Return the key of the HASH with one worker's last heartbeat and last claim."""
    return _key("worker", name)


def workers() -> str:
    """Return the key of the ZSET of workers, ordered by last heartbeat."""
    return _key("workers")


def pool(model: str) -> str:
    """Return the key of the ZSET of a model slug's workers, ordered by last heartbeat."""
    return _key("pool", model)


def models() -> str:
    """Return the key of the ZSET of served model names, ordered by last heartbeat."""
    return _key("models")


def books(model: str) -> str:
    """Return the key of the HASH that is the pool record of a model slug."""
    return _key("books", model)


def appointments(model: str) -> str:
    """Return the key of the ZSET of a model slug's tenants, ordered by appointment."""
    return _key("appointments", model)


def promises(model: str) -> str:
    """Return the key of the ZSET of a model slug's tenants, ordered by the time that their last retry hint named."""
    return _key("promises", model)


def asked() -> str:
    """Return the key of the ZSET of the deduplication ids of recent refusals."""
    return _key("asked")


def polls() -> str:
    """Return the key of the ZSET of jobs that clients must poll, ordered by the time at which they are abandoned."""
    return _key("polls")


def labels() -> str:
    """Return the key of the SET of tenants with a metric label of their own."""
    return _key("labels")


def queues() -> str:
    """Return the key of the ZSET of queues, ordered by the time after which none of their jobs can be read."""
    return _key("queues")


def stats() -> str:
    """Return the key of the HASH of counters and histogram buckets."""
    return _key("stats")


def keys() -> str:
    """Return the key of the HASH that maps the SHA-256 digest of each API key to its record."""
    return _key("keys")


def secret() -> str:
    """Return the key of the STRING with the secret that signs event tickets."""
    return _key("secret")


def rq_job(job_id: str) -> str:
    """Return the key of the HASH that is RQ's record of a job, with Penstock's fields."""
    return _key("rq_job", job_id)

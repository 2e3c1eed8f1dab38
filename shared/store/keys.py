"""Every Redis key: one function each, and one table of type, holder and death.

A key is a fixed prefix, followed by at most one part, so that a script can build the key of a job it
only learns about while it runs; the loader (shared/store/scripts.py) hands scripts the prefixes from here.
`queue` is always `<tenant>.<model slug>`.

When you add a key: a row here, a function below, and its line in docs/keys.md (a test compares).
"""

import re
from dataclasses import dataclass
from typing import Literal

Death = Literal["permanent", "ttl", "emptied", "with the job"]


@dataclass(frozen=True)
class Key:
    """One family of keys. `prefix` is the whole key when `part` is empty."""

    name: str
    prefix: str
    #: What stands after the prefix: "", "id", "tenant", "model", "queue", "worker", "name".
    part: str
    type: Literal["hash", "zset", "list", "string", "stream", "set"]
    holds: str
    #: permanent: may stay for ever · ttl: always carries a TTL · emptied: gone when its last member
    #: is · with the job: no TTL while its job is inflight, a TTL afterwards.
    dies: Death


TABLE: tuple[Key, ...] = (
    Key("config", "penstock:config", "", "hash", "system-wide settings and the state of drains and holds", "permanent"),
    Key("clock", "penstock:clock", "", "string", "tests shift or hold TIME by it; absent in service", "permanent"),
    Key("inflight", "penstock:inflight", "", "zset", "admitted jobs not yet ended, by admission time", "emptied"),
    Key("deadlines", "penstock:deadlines", "", "zset", "waiting jobs, by until when they are wanted", "emptied"),
    Key("leases", "penstock:leases", "", "zset", "running jobs, by the end of their lease", "emptied"),
    Key("active", "penstock:active:", "model", "zset", "tenants with waiting jobs, by service received", "emptied"),
    Key("order", "penstock:order:", "queue", "zset", "waiting jobs of a tenant and model, by latest start", "emptied"),
    Key("tenant", "penstock:tenant:", "tenant", "hash", "policy, service, what waits; permanent with a policy", "ttl"),
    Key("tenants", "penstock:tenants", "", "zset", "tenants seen or with a policy, by last admission", "permanent"),
    Key("lists", "penstock:lists:", "tenant", "set", "models for which the tenant has waiting jobs", "emptied"),
    Key("jobs", "penstock:jobs:", "tenant", "zset", "a tenant's readable jobs, by admission time", "ttl"),
    Key("payload", "penstock:payload:", "id", "string", "the request as JSON; dies at settle", "with the job"),
    Key("result", "penstock:result:", "id", "string", "text and usage as JSON", "ttl"),
    Key("events", "penstock:events:", "id", "stream", "what happened to a running job, for streams", "ttl"),
    Key("idem", "penstock:idem:", "name", "string", "tenant and Idempotency-Key → job id and body hash", "ttl"),
    Key("supersede", "penstock:supersede:", "name", "string", "tenant and supersede_key → its newest job", "ttl"),
    Key("wake", "penstock:wake:", "model", "list", "capped doorbell for idle workers", "ttl"),
    Key("bell", "penstock:bell:", "worker", "list", "ids whose cancel the holder must hear of", "ttl"),
    Key("worker", "penstock:worker:", "worker", "hash", "slots, KV, rates, heartbeat, last claim", "ttl"),
    Key("workers", "penstock:workers", "", "zset", "workers, by last heartbeat", "emptied"),
    Key("pool", "penstock:pool:", "model", "zset", "workers of one model, by last heartbeat", "ttl"),
    Key("models", "penstock:models", "", "zset", "models ever served, by last heartbeat", "permanent"),
    Key("books", "penstock:books:", "model", "hash", "a pool: virtual time, what waits, rates, lengths", "permanent"),
    Key("appointments", "penstock:appointments:", "model", "zset", "tenants, by when their next is due", "permanent"),
    Key("promises", "penstock:promises:", "model", "zset", "tenants told to come back, by when", "permanent"),
    Key("asked", "penstock:asked", "", "zset", "the last refused ids, so that none books twice", "permanent"),
    Key("polls", "penstock:polls", "", "zset", "jobs that must be polled, by when they are abandoned", "emptied"),
    Key("labels", "penstock:labels", "", "set", "the tenants with a metric label of their own", "permanent"),
    Key("queues", "penstock:queues", "", "zset", "queues, by when nothing of them can be read any more", "emptied"),
    Key("stats", "penstock:stats", "", "hash", "counters and histogram buckets", "permanent"),
    Key("keys", "penstock:keys", "", "hash", "SHA-256 of an API key → tenant, label, expiry", "permanent"),
    Key("secret", "penstock:secret", "", "string", "what tickets for events are signed with", "permanent"),
    Key("rq_queues", "rq:queues", "", "set", "RQ: keys of all queues", "emptied"),
    Key("rq_queue", "rq:queue:", "queue", "list", "RQ: a queue's waiting ids, the mirror of its order", "emptied"),
    Key("rq_job", "rq:job:", "id", "hash", "RQ's record of a job, and ours in penstock_ fields", "with the job"),
    Key("rq_wip", "rq:wip:", "queue", "zset", "RQ: started jobs as <id>:<execution>", "emptied"),
    Key("rq_finished", "rq:finished:", "queue", "zset", "RQ: succeeded jobs, by when they are forgotten", "ttl"),
    Key("rq_failed", "rq:failed:", "queue", "zset", "RQ: failed and expired jobs, likewise", "ttl"),
    Key("rq_canceled", "rq:canceled:", "queue", "zset", "RQ: canceled jobs, likewise", "ttl"),
    Key("rq_results", "rq:results:", "id", "stream", "RQ: how a job ended, in numbers", "ttl"),
    Key("rq_workers", "rq:workers", "", "set", "RQ: keys of all workers", "emptied"),
    Key("rq_workers_of", "rq:workers:", "queue", "set", "RQ: keys of the workers of a queue", "emptied"),
    Key("rq_worker", "rq:worker:", "worker", "hash", "RQ's record of a worker", "ttl"),
)

BY_NAME: dict[str, Key] = {key.name: key for key in TABLE}

_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def is_tenant_name(text: str) -> bool:
    """Whether `text` may name a tenant: 1 to 64 of letters, digits, `_` and `-`."""
    return _TENANT.match(text) is not None


def model_slug(model: str) -> str:
    """The model's name as it stands in queue names: anything but letters, digits, `.`, `_`, `-` becomes `-`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", model)


def queue_name(tenant: str, model: str) -> str:
    """The RQ queue of one tenant and model: `<tenant>.<model slug>`."""
    return f"{tenant}.{model_slug(model)}"


def _key(name: str, part: str = "") -> str:
    return BY_NAME[name].prefix + part


def config() -> str:
    """HASH of system-wide settings."""
    return _key("config")


def clock() -> str:
    """STRING of milliseconds added to the store's TIME."""
    return _key("clock")


def inflight() -> str:
    """ZSET of admitted jobs not yet ended."""
    return _key("inflight")


def deadlines() -> str:
    """ZSET of waiting jobs by until when they are wanted."""
    return _key("deadlines")


def leases() -> str:
    """ZSET of running jobs by lease end."""
    return _key("leases")


def active(model: str) -> str:
    """ZSET of tenants with waiting jobs for a model slug."""
    return _key("active", model)


def order(queue: str) -> str:
    """ZSET of a queue's waiting jobs by latest start."""
    return _key("order", queue)


def tenant(name: str) -> str:
    """HASH of one tenant."""
    return _key("tenant", name)


def tenants() -> str:
    """ZSET of tenants by last admission."""
    return _key("tenants")


def lists(tenant_name: str) -> str:
    """SET of model slugs for which a tenant has waiting jobs."""
    return _key("lists", tenant_name)


def jobs(tenant_name: str) -> str:
    """ZSET of a tenant's readable jobs."""
    return _key("jobs", tenant_name)


def payload(job_id: str) -> str:
    """STRING with a job's request."""
    return _key("payload", job_id)


def result(job_id: str) -> str:
    """STRING with a job's text and usage."""
    return _key("result", job_id)


def events(job_id: str) -> str:
    """STREAM of a job's events."""
    return _key("events", job_id)


def idem(tenant_name: str, digest: str) -> str:
    """STRING of one Idempotency-Key, by its digest."""
    return _key("idem", f"{tenant_name}.{digest}")


def supersede(tenant_name: str, digest: str) -> str:
    """STRING of one supersede_key, by its digest."""
    return _key("supersede", f"{tenant_name}.{digest}")


def wake(model: str) -> str:
    """LIST that wakes idle workers of a model slug."""
    return _key("wake", model)


def bell(worker_name: str) -> str:
    """LIST of ids whose cancel one worker must hear of."""
    return _key("bell", worker_name)


def worker(name: str) -> str:
    """HASH of one worker."""
    return _key("worker", name)


def workers() -> str:
    """ZSET of workers by heartbeat."""
    return _key("workers")


def pool(model: str) -> str:
    """ZSET of a model slug's workers by heartbeat."""
    return _key("pool", model)


def models() -> str:
    """ZSET of model names by last heartbeat."""
    return _key("models")


def books(model: str) -> str:
    """HASH of one pool's books."""
    return _key("books", model)


def appointments(model: str) -> str:
    """ZSET of tenants by when their next refused job is due back."""
    return _key("appointments", model)


def promises(model: str) -> str:
    """ZSET of tenants by when they were told to come back."""
    return _key("promises", model)


def asked() -> str:
    """ZSET of the last refused request ids."""
    return _key("asked")


def polls() -> str:
    """ZSET of jobs that must be polled."""
    return _key("polls")


def labels() -> str:
    """SET of tenants with a metric label."""
    return _key("labels")


def queues() -> str:
    """ZSET of queues by the moment nothing of them can be read."""
    return _key("queues")


def stats() -> str:
    """HASH of counters."""
    return _key("stats")


def keys() -> str:
    """HASH of hashed API keys."""
    return _key("keys")


def secret() -> str:
    """STRING that tickets are signed with."""
    return _key("secret")


def rq_job(job_id: str) -> str:
    """HASH of RQ's record of a job."""
    return _key("rq_job", job_id)

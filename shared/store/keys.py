"""The names of all store keys: one function for each row of shared/store/key_table.py that Python code uses.

To add a key: add a row to the table and a function at the end of this file, and regenerate docs/keys.md (`make docs`).
"""

import re

from shared.store.key_table import BY_NAME

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
    """Return the key of the STRING that tests and benchmarks set to control time (shared/lua/lib/base/clock.lua)."""
    return _key("clock")


def mark() -> str:
    """Return the key of the STRING with the latest time that a script has seen, and its offset from TIME, in µs."""
    return _key("mark")


def of_time() -> list[str]:
    """Return the two keys from which, with TIME, shared/store_clock.py computes the store's time."""
    return [clock(), mark()]


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
    """Return the key of the ZSET of those who want a model slug's slots, ordered by service."""
    return _key("active", model)


def batch(model: str) -> str:
    """Return the key of the ZSET of those who want a model slug's slots only for batch jobs, ordered by service."""
    return _key("batch", model)


def rows(model: str) -> str:
    """Return the key of the hash that counts each tenant's and group's computing and paused jobs of a model slug."""
    return _key("rows", model)


def order(queue: str) -> str:
    """Return the key of the ZSET of a queue's jobs, ordered by priority and latest start."""
    return _key("order", queue)


def tenant(name: str) -> str:
    """Return the key of the HASH with one tenant's policy, service and sums."""
    return _key("tenant", name)


def service_field(slug: str) -> str:
    """Return the field of a tenant's hash with its service in one pool, in mwt (shared/lua/lib/fairness/turns.lua)."""
    return f"s|{slug}"


def spent(day: str) -> str:
    """Return the key of the HASH with the costs of the jobs of a day (UTC, 2026-11-23), by pool and by tenant."""
    return _key("spent", day)


def usage(day: str) -> str:
    """Return the key of the HASH with the usage of a day (UTC, 2026-11-23), by tenant, key label and model."""
    return _key("usage", day)


def tenants() -> str:
    """Return the key of the ZSET of tenants, ordered by last admission."""
    return _key("tenants")


def group_owner(group: str) -> str:
    """Return the name under which a group has a record, a service and a place in the active sets."""
    return f"@{group}"


def groups() -> str:
    """Return the key of the SET of groups that have a policy."""
    return _key("groups")


def lists(tenant_name: str) -> str:
    """Return the key of the SET of model slugs for which a tenant has queued jobs."""
    return _key("lists", tenant_name)


def jobs(tenant_name: str) -> str:
    """Return the key of the ZSET of a tenant's jobs that can be read, ordered by admission time."""
    return _key("jobs", tenant_name)


def kept(tenant_name: str) -> str:
    """Return the key of the HASH with the bytes that a tenant's jobs take: inflight, ended, and by when they expire."""
    return _key("kept", tenant_name)


def payload(job_id: str) -> str:
    """Return the key of the STRING with a job's request."""
    return _key("payload", job_id)


def partial(job_id: str) -> str:
    """Return the key of the STRING with the token ids of a job's unfinished answer."""
    return _key("partial", job_id)


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


def live() -> str:
    """Return the key of the ZSET of the workers that are counted as live, ordered by last heartbeat."""
    return _key("live")


def counted() -> str:
    """Return the key of the HASH with each live worker's part of the sums of slots and rates."""
    return _key("counted")


def pool(model: str) -> str:
    """Return the key of the ZSET of a model slug's workers, ordered by last heartbeat."""
    return _key("pool", model)


def crashes(model: str) -> str:
    """Return the key of the HASH with a model slug's workers that ended by a fault or fell silent lately."""
    return _key("crashes", model)


def models() -> str:
    """Return the key of the ZSET of served model names, ordered by last heartbeat."""
    return _key("models")


def books(model: str) -> str:
    """Return the key of the HASH that is the pool record of a model slug."""
    return _key("books", model)


def appointments(model: str) -> str:
    """Return the key of the ZSET of a model slug's tenants, ordered by appointment."""
    return _key("appointments", model)


def room(model: str) -> str:
    """Return the key of the HASH with the smallest threshold of a pool's tenants in the last seconds."""
    return _key("room", model)


def reservations(model: str) -> str:
    """Return the key of the ZSET of the refused clients of a pool that were told to come back."""
    return _key("reservations", model)


def promises(model: str) -> str:
    """Return the key in which format 1 kept when each tenant of a pool was told to come back. Nothing reads it."""
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


def patrol() -> str:
    """Return the key of the HASH that says which process reconciles queues, and how far the round over them is."""
    return _key("patrol")


def stats() -> str:
    """Return the key of the HASH of counters and histogram buckets."""
    return _key("stats")


def exemplars() -> str:
    """Return the key of the HASH of the newest job in each bucket of the histograms of jobs' times."""
    return _key("exemplars")


def mended(what: str) -> str:
    """Return the key of the STRING that says that a script mended `what`, a key or a key and a field, in this hour."""
    return _key("mended", what)


def notices() -> str:
    """Return the key of the LIST of mends that no process has logged yet."""
    return _key("notices")


def spoiled(key: str) -> str:
    """Return the key under which a value is kept that another program had stored under `key`."""
    return _key("spoiled", key)


def keys() -> str:
    """Return the key of the HASH that maps the SHA-256 digest of each API key to its record."""
    return _key("keys")


def admin_keys() -> str:
    """Return the key of the HASH that maps the SHA-256 digest of each admin key to its record."""
    return _key("admin_keys")


def admin_actions() -> str:
    """Return the key of the STREAM that is the audit log of admin actions."""
    return _key("admin_actions")


def key_rates(key_id: str) -> str:
    """Return the key of the HASH with how much of its rates an API key has used."""
    return _key("key_rates", key_id)


def key_jobs(key_id: str) -> str:
    """Return the key of the ZSET of an API key's queued jobs, if the key has a bound on them, ordered by expiry."""
    return _key("key_jobs", key_id)


def secret() -> str:
    """Return the key of the STRING with the secret that signs event tickets."""
    return _key("secret")


def rq_job(job_id: str) -> str:
    """Return the key of the HASH that is RQ's record of a job, with Penstock's fields."""
    return _key("rq_job", job_id)


def routes() -> str:
    """Return the key of the HASH of all routes, by the names that clients use."""
    return _key("routes")


def pools() -> str:
    """Return the key of the SET of the models whose pools have terms."""
    return _key("pools")


def file(file_id: str) -> str:
    """Return the key of the HASH that is a file's record."""
    return _key("file", file_id)


def file_parts(file_id: str) -> str:
    """Return the key of the HASH with a file's content, by number of the part."""
    return _key("file_parts", file_id)


def files(tenant_name: str, purpose: str = "") -> str:
    """Return the key of the ZSET of a tenant's files, or of those of one purpose, ordered by id."""
    return _key("files", f"{tenant_name}.{purpose}" if purpose else tenant_name)


def file_bytes(home: str, tenant_name: str = "") -> str:
    """Return the key of the HASH with the bytes of all files in a home, or of a tenant's in a folder, by expiry."""
    return _key("file_bytes", f"{home}.{tenant_name}" if tenant_name else home)


def batch_record(batch_id: str) -> str:
    """Return the key of the HASH that is a batch's record."""
    return _key("batch_record", batch_id)


def batch_lines(batch_id: str) -> str:
    """Return the key of the HASH with a batch's lines that are in the queue or run."""
    return _key("batch_lines", batch_id)


def batch_answers(batch_id: str) -> str:
    """Return the key of the HASH with a batch's answers that are not in a file yet."""
    return _key("batch_answers", batch_id)


def batches(tenant_name: str) -> str:
    """Return the key of the ZSET of a tenant's batches, ordered by id."""
    return _key("batches", tenant_name)


def open_batches_of(tenant_name: str) -> str:
    """Return the key of the SET of a tenant's batches that have not ended."""
    return _key("open_batches_of", tenant_name)


def open_batches() -> str:
    """Return the key of the ZSET of the batches that have not ended, ordered by when they are due."""
    return _key("open_batches")


def webhook(name: str) -> str:
    """Return the key of the HASH of an end that is to be told; `name` is the id of the job or batch."""
    return _key("webhook", name)


def webhooks() -> str:
    """Return the key of the ZSET of all webhooks that are not told yet, ordered by when their jobs ended."""
    return _key("webhooks")


def webhook_due(tenant_name: str) -> str:
    """Return the key of the ZSET of a tenant's webhooks, ordered by when they are due."""
    return _key("webhook_due", tenant_name)


def webhook_turns() -> str:
    """Return the key of the ZSET of the tenants with webhooks, ordered by when their turn is."""
    return _key("webhook_turns")


def webhook_secrets() -> str:
    """Return the key of the HASH of the tenants' secrets with which their webhooks are signed."""
    return _key("webhook_secrets")


def rq_failed(queue: str) -> str:
    """Return the key of the ZSET with the failed and expired jobs of a queue, ordered by the time of their deletion."""
    return _key("rq_failed", queue)

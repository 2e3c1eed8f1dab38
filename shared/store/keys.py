"""The names of all store keys, with their types, contents and lifetimes.

The script loader (shared/store/scripts.py) passes the prefixes to the scripts, so that a script can build the key of a
job whose id it learns only while it runs. To add a key, add it to the table and regenerate docs/keys.md (`make docs`).
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from shared.jobs.model_folder import model_slug as model_slug  # noqa: PLC0414 - for the users of this module

_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True)
class Key:
    """One family of keys with the same prefix; calling it returns the key for one value of its variable part."""

    #: The key, with its variable part in angle brackets. A `queue` is always `<tenant>.<model slug>`, and a `name`
    #: may be several words, joined by dots. A key without a variable part is the only one of its family.
    pattern: str
    type: Literal["hash", "zset", "list", "string", "stream", "set", "any"]
    holds: str
    #: permanent: the key never expires. ttl: it always has a TTL. emptied: Redis deletes it when its last member is
    #: removed. with the job: it has no TTL while its job is inflight, and a TTL afterwards.
    dies: Literal["permanent", "ttl", "emptied", "with the job"]

    @cached_property
    def prefix(self) -> str:
        """The text before the variable part, or the only key."""
        return self.pattern.partition("<")[0]

    @cached_property
    def part(self) -> str:
        """The name of the variable part; "" for a key without one."""
        return self.pattern.partition("<")[2].partition(">")[0]

    @cached_property
    def suffix(self) -> str:
        """The text after the variable part. Only a key of RQ has one."""
        return self.pattern.partition(">")[2]

    def __call__(self, *words: str) -> str:
        """Return the key for one value of the variable part, which is one word, or several words joined by dots."""
        if bool(words) != bool(self.part):
            raise TypeError(f"{self.pattern} is not a key of {words}")
        return f"{self.prefix}{'.'.join(words)}{self.suffix}"


config = Key(
    "penstock:config",
    "hash",
    "system-wide settings, format, whether the system drains, until when no lease is taken back",
    "permanent",
)
cells = Key("penstock:cells", "hash", "the directory of cells: each cell's store, tenants' places", "permanent")
clock = Key("penstock:clock", "string", "clock offset for tests; absent in production", "permanent")
mark = Key("penstock:mark", "string", "latest time of a script, and how far it is ahead of TIME", "permanent")
inflight = Key("penstock:inflight", "zset", "all inflight jobs, ordered by admission time", "emptied")
deadlines = Key("penstock:deadlines", "zset", "queued jobs, ordered by when they expire", "emptied")
leases = Key("penstock:leases", "zset", "running jobs, ordered by the end of their lease", "emptied")
active = Key(
    "penstock:active:<model>",
    "zset",
    "the active set (tenants, @groups), by service; of a group: <model>@<group>",
    "emptied",
)
rows = Key(
    "penstock:rows:<model>",
    "hash",
    "running jobs of each tenant and @group: computing, paused, and the batch jobs among both",
    "emptied",
)
batch = Key(
    "penstock:batch:<model>",
    "zset",
    "the batch set: those with only batch jobs queued or paused, named and ordered as in the active set",
    "emptied",
)
order = Key("penstock:order:<queue>", "zset", "a queue's jobs, by priority and latest start", "emptied")
tenant = Key(
    "penstock:tenant:<tenant>",
    "hash",
    "of a tenant or @group: service by pool, queue sums, budget, policy; no TTL with a policy",
    "ttl",
)
groups = Key("penstock:groups", "set", "groups of tenants with a policy", "permanent")
routes = Key("penstock:routes", "hash", "routes as JSON, by the name that clients use", "permanent")
pools = Key("penstock:pools", "set", "models whose pools have terms: marked as local, prices", "permanent")
spent = Key("penstock:spent:<day>", "hash", "what the jobs of a day (UTC) cost, by pool and by tenant", "ttl")
usage = Key(
    "penstock:usage:<day>",
    "hash",
    "jobs that ended on a day (UTC) and their tokens, by tenant, key label and model; kept for 400 days",
    "ttl",
)
tenants = Key("penstock:tenants", "zset", "tenants admitted or with a policy, by last admission", "permanent")
lists = Key("penstock:lists:<tenant>", "set", "models whose slots the tenant or @group wants", "emptied")
jobs = Key("penstock:jobs:<tenant>", "zset", "a tenant's readable jobs, ordered by admission time", "ttl")
recent_jobs = Key(
    "penstock:recent_jobs", "zset", "the newest jobs of all tenants, ordered by admission time; bounded", "ttl"
)
kept = Key("penstock:kept:<tenant>", "hash", "bytes that a tenant's jobs take, by when they expire", "ttl")
payload = Key(
    "penstock:payload:<id>",
    "string",
    "request as JSON; deleted when the job ends, or kept as long as its record to be continued or run again",
    "with the job",
)
partial = Key(
    "penstock:partial:<id>",
    "string",
    "token ids of an unfinished answer, and a seal; deleted when the job ends",
    "with the job",
)
result = Key("penstock:result:<id>", "string", "text and usage as JSON", "ttl")
events = Key("penstock:events:<id>", "stream", "the events of a job, for clients that follow it", "ttl")
idem = Key(
    "penstock:idem:<name>",
    "string",
    "for a tenant's Idempotency-Key: id of the job, file or batch, and body digest",
    "ttl",
)
supersede = Key("penstock:supersede:<name>", "string", "newest job id for a tenant's supersede_key", "ttl")
file = Key("penstock:file:<name>", "hash", "a file's owner, name, length and lifetime", "ttl")
file_parts = Key("penstock:file_parts:<name>", "hash", "a file's content, by number of the part", "ttl")
files = Key("penstock:files:<name>", "zset", "a tenant's files, or `<tenant>.<purpose>`, ordered by id", "ttl")
file_bytes = Key(
    "penstock:file_bytes:<name>",
    "hash",
    "bytes of files by when they expire: in the store, in a folder, of a tenant in a folder",
    "ttl",
)
batch_record = Key("penstock:batch_record:<name>", "hash", "a batch's owner, file, status and counts", "ttl")
batch_lines = Key("penstock:batch_lines:<name>", "hash", "a batch's lines that are in the queue or run", "ttl")
batch_answers = Key("penstock:batch_answers:<name>", "hash", "a batch's answers until they are in files", "ttl")
batches = Key("penstock:batches:<tenant>", "zset", "a tenant's batches, ordered by id", "ttl")
open_batches_of = Key("penstock:open_batches_of:<tenant>", "set", "a tenant's batches that have not ended", "ttl")
open_batches = Key("penstock:open_batches", "zset", "batches, ordered by when they are due", "emptied")
webhook = Key(
    "penstock:webhook:<name>", "hash", "an end that is to be told: where, a copy of the job or batch, tries", "ttl"
)
webhooks = Key("penstock:webhooks", "zset", "webhooks that are not told yet, by when the job ended", "emptied")
webhook_due = Key("penstock:webhook_due:<tenant>", "zset", "a tenant's webhooks, by when they are due", "emptied")
webhook_turns = Key("penstock:webhook_turns", "zset", "tenants with webhooks, by when their turn is", "emptied")
webhook_secrets = Key("penstock:webhook_secrets", "hash", "the tenants' secrets for signatures", "permanent")
passages = Key("penstock:passages:<tenant>", "hash", "passages found for a tenant's queries, by digest; bounded", "ttl")
passage_ages = Key("penstock:passage_ages:<tenant>", "zset", "the same digests, by when they were stored", "ttl")
passages_dropped = Key(
    "penstock:passages_dropped:<tenant>", "string", "when a tenant's cached passages were deleted", "ttl"
)
passage_bytes = Key(
    "penstock:passage_bytes", "hash", "bytes of the cached passages of all tenants, by when they expire", "ttl"
)
answers = Key("penstock:answers:<tenant>", "hash", "a tenant's semantic cache: answers, by digest; bounded", "ttl")
answer_order = Key("penstock:answer_order:<tenant>", "zset", "the same digests, by when they were stored", "ttl")
answer_vectors = Key("penstock:answer_vectors:<tenant>", "hash", "the vectors of their prompts, by digest", "ttl")
answer_bytes = Key(
    "penstock:answer_bytes", "hash", "bytes of the cached answers of all tenants, by when they expire", "ttl"
)
wake = Key("penstock:wake:<model>", "list", "doorbell of a pool, on which idle workers block; capped", "ttl")
bell = Key(
    "penstock:bell:<worker>",
    "list",
    "doorbell of a worker: jobs to cancel, jobs that are followed, signs to claim",
    "ttl",
)
worker = Key("penstock:worker:<worker>", "hash", "slots, KV cells, rates, last heartbeat, last claim", "ttl")
workers = Key("penstock:workers", "zset", "workers, ordered by last heartbeat", "emptied")
live = Key("penstock:live", "zset", "workers whose parts are counted, ordered by last heartbeat", "emptied")
counted = Key("penstock:counted", "hash", "each live worker's part of the sums of slots and rates", "emptied")
pool = Key("penstock:pool:<model>", "zset", "workers of one model, ordered by last heartbeat", "ttl")
prefixes = Key(
    "penstock:prefixes:<model>",
    "hash",
    "workers that have lately computed a prompt's beginning, by its digest; bounded",
    "ttl",
)
crashes = Key(
    "penstock:crashes:<model>",
    "hash",
    "workers of the last minutes that ended by a fault or fell silent: when, after how long, why",
    "ttl",
)
models = Key("penstock:models", "zset", "all models ever served, ordered by last heartbeat", "permanent")
books = Key("penstock:books:<model>", "hash", "pool record: virtual time, sums, rates, lengths", "permanent")
appointments = Key("penstock:appointments:<model>", "zset", "tenants, ordered by appointment", "permanent")
room = Key("penstock:room:<model>", "hash", "smallest threshold of the last seconds, for hints", "permanent")
reservations = Key("penstock:reservations:<model>", "zset", "refused clients, by tenant and retry time", "permanent")
promises = Key("penstock:promises:<model>", "zset", "of format 1; sweep deletes it", "permanent")
asked = Key("penstock:asked", "zset", "ids of recent refusals; a repeat is not counted again", "permanent")
polls = Key("penstock:polls", "zset", "jobs that must be polled, ordered by poll deadline", "emptied")
labels = Key("penstock:labels", "set", "tenants with a metric label of their own", "permanent")
queues = Key("penstock:queues", "zset", "queues, ordered by when their last result expires", "emptied")
patrol = Key("penstock:patrol", "hash", "which process reconciles, and how far; which process sweeps", "ttl")
alerts = Key("penstock:alerts", "hash", "the alerts: which door looks after them, what it has told, tests", "ttl")
stats = Key("penstock:stats", "hash", "counters and histogram buckets", "permanent")
exemplars = Key("penstock:exemplars", "hash", "the newest job in each bucket of times of jobs", "permanent")
history = Key("penstock:history", "hash", "the points of the history: an hour, a day, 30 days; bounded", "ttl")
history_now = Key("penstock:history_now", "hash", "what happened since the last point of the history; bounded", "ttl")
history_busy = Key(
    "penstock:history_busy", "zset", "the busiest tenants of the last hours, by activity; bounded", "ttl"
)
mended = Key("penstock:mended:<name>", "string", "a key or field that a script mended in the last hour", "ttl")
notices = Key("penstock:notices", "list", "mends that no process has logged yet; capped", "ttl")
spoiled = Key("penstock:spoiled:<name>", "any", "what a key held that another program had replaced", "ttl")
keys = Key("penstock:keys", "hash", "tenant, label and expiry of each API key, by its SHA-256", "permanent")
missed_changes = Key(
    "penstock:missed_changes", "set", "cells that have missed a change of accounts which this cell has", "emptied"
)
spending_exchange = Key(
    "penstock:spending_exchange", "string", "which process tells the cells what is used of budgets elsewhere", "ttl"
)
admin_keys = Key("penstock:admin_keys", "hash", "name and expiry of admin keys, by their SHA-256", "permanent")
admin_actions = Key("penstock:admin_actions", "stream", "audit log: the newest 10,000 admin actions", "permanent")
key_rates = Key("penstock:key_rates:<key>", "hash", "how much of its rates an API key has used", "ttl")
key_jobs = Key("penstock:key_jobs:<key>", "zset", "an API key's queued jobs, ordered by expiry", "ttl")
secret = Key("penstock:secret", "string", "the secret used to sign event tickets", "permanent")
rq_queues = Key("rq:queues", "set", "RQ: the keys of all queues", "emptied")
rq_queue = Key("rq:queue:<queue>", "list", "RQ: ids of a queue's jobs, in Penstock's order", "emptied")
rq_job = Key("rq:job:<id>", "hash", "RQ: a job's record, with Penstock's own penstock_ fields", "with the job")
rq_wip = Key("rq:wip:<queue>", "zset", "RQ: running jobs as <id>:<claim token>", "emptied")
rq_finished = Key("rq:finished:<queue>", "zset", "RQ: succeeded jobs, ordered by deletion time", "ttl")
rq_failed = Key("rq:failed:<queue>", "zset", "RQ: failed and expired jobs, ordered by deletion time", "ttl")
rq_canceled = Key("rq:canceled:<queue>", "zset", "RQ: canceled jobs, ordered by deletion time", "ttl")
rq_results = Key("rq:results:<id>", "stream", "RQ: how a job ended, as token counts and times", "ttl")
rq_workers = Key("rq:workers", "set", "RQ: the keys of all workers", "emptied")
rq_workers_of = Key("rq:workers:<queue>", "set", "RQ: the keys of a queue's workers", "emptied")
rq_worker = Key("rq:worker:<worker>", "hash", "RQ: the record of a worker", "ttl")
rq_executions = Key("rq:worker:<worker>:executions", "set", "RQ 3: the execution of the worker's current job", "ttl")
rq_execution = Key("rq:execution:<execution>", "hash", "RQ 3: the record of the execution <id>:<claim token>", "ttl")

#: All keys, by name.
TABLE: dict[str, Key] = {name: key for name, key in list(globals().items()) if isinstance(key, Key)}


def is_tenant_name(text: str) -> bool:
    """Return whether `text` is a valid tenant name: 1 to 64 letters, digits, `_` and `-`."""
    return _TENANT.match(text) is not None


def queue_name(tenant: str, model: str) -> str:
    """Return the name of the queue of one tenant and model: `<tenant>.<model slug>`."""
    return f"{tenant}.{model_slug(model)}"


def of_time() -> list[str]:
    """Return the two keys from which, with TIME, shared/store_clock.py computes the store's time."""
    return [clock(), mark()]


def service_field(slug: str) -> str:
    """Return the field of a tenant's hash with its service in one pool, in mwt (shared/lua/lib/fairness/turns.lua)."""
    return f"s|{slug}"


def group_owner(group: str) -> str:
    """Return the name under which a group has a record, a service and a place in the active sets."""
    return f"@{group}"

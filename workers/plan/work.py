"""Computes how many jobs of a kind a worker holds at once and does per second, and the settings that suit its users."""

import math
from dataclasses import dataclass

from shared.errors import ConfigError
from shared.jobs.cost import reported_weight
from shared.settings.queue import QueueSettings
from shared.settings.setting import AUTO
from shared.settings.settings import Settings
from shared.settings.worker import WorkerSettings
from workers.engine.sizing import FEWEST_MEASURED_SLOTS
from workers.plan.memory import DoesNotFit, Fit

#: The largest values that PENSTOCK_MAX_WAIT_MS and PENSTOCK_MAX_INFLIGHT may have.
_MAX_WAIT_MS, _MAX_INFLIGHT = 3_600_000, 10_000_000


@dataclass(frozen=True)
class Demand:
    """Jobs of `prompt` and `answer` tokens; `users` people have one inflight each. 0 stands for a number not given."""

    prompt: int
    answer: int
    users: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt + self.answer


@dataclass(frozen=True)
class Work:
    """The part of a demand that a worker can serve. The rates and times are None if no rate is known."""

    demand: Demand
    #: How many jobs have cells and a slot at the same time.
    jobs_at_once: int
    #: How many jobs would have cells if there were slots for all of them.
    jobs_in_memory: int
    jobs_per_s: float | None
    #: When the last user has the whole answer if all users submit at the same time.
    last_answer_s: float | None


def work_of(fit: Fit, settings: QueueSettings, demand: Demand, rate_wtps: float | None) -> Work:
    """Return the work of a worker with these sizes that computes `rate_wtps` weighted tokens per second.

    A job costs its prompt tokens and the weighted tokens of its answer, as in the reports of workers (mu_wtps). Raises
    DoesNotFit if one such job is longer than the worker accepts.
    """
    if demand.tokens > fit.sizes.n_ctx:
        raise DoesNotFit(
            f"a job of {demand.tokens} tokens is longer than the longest that this worker accepts, "
            f"{fit.sizes.n_ctx}; give --context, more memory or fewer --slots"
        )
    # Each part of a split cache holds the longest job.
    in_memory = fit.sizes.cells // demand.tokens if fit.shared and fit.cells_bytes else fit.sizes.slots
    at_once = min(in_memory, fit.sizes.slots)
    cost_wt = demand.prompt + reported_weight(settings.generated_weight) * demand.answer
    jobs_per_s = rate_wtps / cost_wt if rate_wtps else None
    last_s = demand.users / jobs_per_s if demand.users and jobs_per_s else None
    return Work(demand, at_once, in_memory, jobs_per_s, last_s)


def measures_slots(fit: Fit, settings: WorkerSettings) -> bool:
    return settings.max_batch_size == AUTO and fit.sizes.slots > FEWEST_MEASURED_SLOTS


def suitable_settings(fit: Fit, settings: Settings, work: Work | None) -> dict[str, int]:
    """Return the settings that the plan implies, by name.

    With users, the bounds let all of them have a job inflight at the same time, even if all belong to one tenant. The
    bounds that are `auto` otherwise have at least the value that `auto` has.
    """
    slots = fit.sizes.slots
    found = {} if measures_slots(fit, settings) else {"PENSTOCK_MAX_BATCH_SIZE": slots}
    found["PENSTOCK_N_CTX"] = fit.sizes.n_ctx
    if fit.cells_bytes:
        found["PENSTOCK_KV_CELLS"] = fit.sizes.cells
    if work is None or not work.demand.users:
        return found
    users = work.demand.users
    wait_ms, places = settings.max_wait_ms, 4 * slots
    if work.jobs_per_s:
        queued_ms = math.ceil(max(0, users - work.jobs_at_once) / work.jobs_per_s) * 1000
        wait_ms = min(max(wait_ms, queued_ms), _MAX_WAIT_MS)
        # The places of a pool, as heartbeats compute them (docs/adr/0041-bounds-from-what-is-measured.md).
        places = max(places, slots + math.ceil(1.25 * wait_ms / 1000 * work.jobs_per_s))
        found["PENSTOCK_MAX_WAIT_MS"] = wait_ms
    found["PENSTOCK_MAX_INFLIGHT"] = min(max(64, places, users), _MAX_INFLIGHT)
    found["PENSTOCK_MAX_QUEUE_SIZE"] = max(16, 2 * slots, users)
    return found


def demand_of(prompt: int | None, answer: int | None, users: int | None) -> Demand | None:
    """Return the demand that the options describe, or None without options. Raises ConfigError if one is missing."""
    if prompt is None and answer is None and users is None:
        return None
    if prompt is None or answer is None:
        raise ConfigError(
            f"--prompt={prompt} and --answer={answer}: name both numbers of tokens, with --users and with --rate too"
        )
    return Demand(prompt, answer, users or 0)

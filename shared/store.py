"""The state machine as Python sees it: one method per script, one typed answer each."""

from collections.abc import Sequence
from typing import Any

import redis

from shared.answers import (
    Admitted,
    Beat,
    CancelAnswer,
    IdempotencyMismatch,
    JobPage,
    Reaped,
    Refused,
    Renewed,
    Settled,
    Snapshot,
)
from shared.config import Settings
from shared.job import Claimed, Ending, Held, JobView, NewJob


class Store:
    """All movements of jobs. Every method raises StoreUnavailable when the store does not answer or write.

    Thread-safe as far as `redis.Redis` is: methods may be called from any thread.
    """

    def __init__(self, client: redis.Redis) -> None: ...

    def configure(self, settings: Settings, *, take_over: bool = False) -> None:
        """Write the system-wide settings if there are none. Raises SettingsConflict when others are there."""

    def admit(self, job: NewJob) -> Admitted | Refused | IdempotencyMismatch:
        """Take the job whole or refuse it; nothing in between."""

    def claim(self, worker: str, claim_id: str, model: str, *, room: int, cells_free: int) -> list[Claimed]:
        """At most `room` jobs in turns across tenants; the same claim_id again answers the same jobs."""

    def renew(self, beat: Beat, held: Sequence[Held]) -> Renewed:
        """Beat, and extend the leases of exactly what is named."""

    def append(self, chunks: Sequence[tuple[Held, str, int]]) -> list[str]:
        """Add (job, new text, tokens so far) to the jobs' event streams; answers the ids no longer held."""

    def settle(self, ending: Ending, worker: str) -> Settled:
        """End a job once, by its lease's holder; the store has the last word on cancel and deadline."""

    def cancel(self, job_id: str, *, tenant: str | None = None, code: str = "canceled") -> CancelAnswer:
        """End a waiting job, flag a running one. With a tenant, another tenant's job is GONE."""

    def release(self, worker: str, held: Sequence[Held]) -> int:
        """Give jobs back unharmed (a drain); they keep admission and deadline, the attempt does not count."""

    def reap(self) -> Reaped:
        """End what is late in the queue, take back what no lease holds; at most 64 of each a call."""

    def touch(self, job_id: str, *, tenant: str | None = None) -> JobView | None:
        """A poll: the job as it is, noted as polled. None for unknown ids and other tenants' jobs."""

    def erase(self, job_id: str, *, tenant: str | None = None) -> bool:
        """Remove an ended job's text; whether there was one."""

    def jobs(self, tenant: str, *, status: str | None = None, limit: int = 20, cursor: str | None = None) -> JobPage:
        """A tenant's readable jobs, newest first."""

    def snapshot(self, *, tenants: int = 50) -> Snapshot:
        """One consistent picture; at most `tenants` of the most recently seen."""

    def read_events(self, after: dict[str, str], *, block_ms: int) -> dict[str, list[tuple[str, dict[str, str]]]]:
        """Events of several jobs after the given stream ids ("0" from the start), waiting up to block_ms.

        An event is (stream id, fields); fields["type"] is `started` (attempt), `token` (text, tokens)
        or `ended` (outcome). One call follows any number of jobs on one connection.
        """

    def wait_for_work(self, worker: str, model: str, *, timeout_s: float) -> tuple[bool, list[str]]:
        """Block on the pool's doorbell and the worker's bell: (a job may wait, ids whose cancel was asked)."""

    def ring(self, worker: str) -> None:
        """Wake a worker that waits for work (its own shutdown)."""

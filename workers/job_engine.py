"""The protocol between the duties and an engine; the batching engine and the upstream engine implement it.

The docstring of `workers.engine` has the whole contract: which thread calls what, and which events an engine emits.
"""

import threading
from typing import Protocol

from shared.jobs.job import ClaimRef
from workers.engine.backend import Facts, Prepared
from workers.engine.events import FreeCapacity, JobSpec
from workers.engine.stats import EngineStats


class JobEngine(Protocol):
    """Runs the jobs of one worker. All methods but `run` may be called from any thread."""

    @property
    def facts(self) -> Facts:
        """The facts that do not change while the engine runs, among them the numbers of slots and KV cells."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The counters so far. Only the engine's thread changes them."""
        ...

    @property
    def slots(self) -> int:
        """How many jobs the engine runs at once now, at most `facts.slots`; see `workers.upstream.concurrency`."""
        ...

    @property
    def shares_steps(self) -> bool:
        """Whether all jobs share each step. If not, each slot computes its prompt at the full prefill rate."""
        ...

    @property
    def can_pause(self) -> bool:
        """Whether jobs can be paused. If not, `pause` and `resume` return False."""
        ...

    def prepare(self, spec: JobSpec) -> Prepared:
        """Validate a job and count the tokens of its prompt. Reserves nothing. Raises JobRejected."""
        ...

    def submit(self, job: Prepared) -> None:
        """Pass a job to the engine, which emits exactly one Ended event for it."""
        ...

    def cancel(self, key: ClaimRef, *, drop: bool = False) -> None:
        """Ask the engine to end a job, if it has not ended yet. `drop` means that the job's lease was lost."""
        ...

    def pause(self, key: ClaimRef) -> bool:
        """Ask the engine to take a job's slot within one step. The job keeps its answer so far and its deadline.

        The slot and the reserved cells are free for jobs that are submitted or resumed from now on. Return False if
        the job is not in the engine, or already paused.
        """
        ...

    def resume(self, key: ClaimRef, *, if_free: bool = False) -> bool:
        """Ask the engine to resume a paused job, before all jobs that wait for a slot.

        Return whether the job was paused. With `if_free`, also return False if no slot or not enough cells are free.
        """
        ...

    def recall(self) -> None:
        """Ask the engine to return the jobs that have no slot, paused ones included."""
        ...

    def free_capacity(self) -> FreeCapacity:
        """Return how many slots and cells are free for further jobs, and how many slots soon will be."""
        ...

    def note_demand(self) -> None:
        """Record that the door refuses requests for the model because of the load."""
        ...

    def figures(self) -> dict[str, str | int | float]:
        """Return the figures that only this kind of engine measures, for the heartbeat."""
        ...

    def run(self, stop: threading.Event) -> None:
        """Run jobs until `stop` is set and `wake` was called. Then end the remaining jobs as dropped."""
        ...

    def wake(self) -> None:
        """Make `run` check its stop event."""
        ...

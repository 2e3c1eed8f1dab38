"""The part of `workers.job_engine` for an engine whose jobs cannot be paused, because another process computes them."""

from shared.jobs.job import ClaimRef


class Unpausable:
    """The part of a `JobEngine` that concerns pauses."""

    can_pause = False

    def pause(self, key: ClaimRef) -> bool:  # noqa: ARG002 - the Protocol's name
        """Return False: a request to the upstream cannot be paused."""
        return False

    def resume(self, key: ClaimRef, *, if_free: bool = False) -> bool:  # noqa: ARG002 - the Protocol's names
        return False

"""Which of the workers on a machine a process is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerPlace:
    """The worker's index among the workers on this machine. It selects the worker's GPU or share of the CPU cores."""

    index: int = 0
    workers: int = 1

    @property
    def arguments(self) -> tuple[str, str]:
        """The options of `python -m workers` that name the place."""
        return f"--index={self.index}", f"--workers={self.workers}"

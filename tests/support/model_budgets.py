"""The budgets of the reference model: what counts for a tenant or a group on a day, and what its jobs reserve."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model import Model
    from tests.support.model_admission import AdmissionView

DAY_MS = 86_400_000


@dataclass
class Budgets:
    """The budgets for a day, and the tokens that count, by owner and day since the epoch."""

    a_day: dict[str, int] = field(default_factory=dict)
    counted: Counter[tuple[str, int]] = field(default_factory=Counter)

    def count_end(self, job: ModelJob, now_ms: int, tokens: int) -> None:
        """Count what the client is told, on the day of the end."""
        for owner in job.budget_owners:
            self.counted[owner, now_ms // DAY_MS] += tokens


def reserved(jobs: list[ModelJob], owner: str) -> int:
    """Return what is reserved for an owner's jobs among these inflight ones."""
    return sum(job.tokens for job in jobs if owner in job.budget_owners)


def used(model: "Model", jobs: list[ModelJob], owner: str) -> int:
    """Return what an owner's budget of the day has used, with what is reserved for these jobs."""
    return model.budgets.counted[owner, model.now_ms // DAY_MS] + reserved(jobs, owner)


def check_budgets(view: "AdmissionView") -> str | None:
    """Refuse what could exceed the budget of the tenant or of its group."""
    for owner in {view.job.tenant, view.unit}:
        most = view.model.budgets.a_day.get(owner)
        if most is not None and used(view.model, view.left, owner) + view.job.tokens > most:
            return "budget_exhausted"
    return None

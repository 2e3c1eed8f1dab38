"""A state machine in which two tenants and the group have budgets for a day, whose end may be near."""

from datetime import UTC, datetime

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule

from shared.store import keys
from tests.support.machine import START_MS, TENANTS, QueueMachine
from tests.support.machine_groups import TEAM, GroupedMachine
from tests.support.model_budgets import DAY_MS, reserved

#: The clock at the beginning of a run that passes midnight soon.
LATE_MS = START_MS - START_MS % DAY_MS + DAY_MS - 5_000


class BudgetedMachine(GroupedMachine):
    """Adds budgets to the policies of bob and cyd and of the group."""

    claims = QueueMachine.claims
    ids = QueueMachine.ids

    def set_up(self, *given, budget=None, **options):
        """Start an empty queue and set the budgets to `budget` tokens, that of the group to half as much again."""
        super().set_up(*given, **options)
        if budget is not None:
            for owner, most in (("bob", budget), ("cyd", budget), (TEAM, 3 * budget // 2)):
                self._set_budget(owner, most)

    def _set_budget(self, owner, most):
        self.client.hset(keys.tenant(owner), mapping={"policy": "1", "policy_tokens_per_day": str(most)})
        if owner != TEAM:
            self.client.zadd(keys.tenants(), {owner: START_MS}, nx=True)
            self.model.first_ms[owner] = None
        self.model.budgets.a_day[owner] = most

    @precondition(lambda self: hasattr(self, "model") and self.model.budgets.a_day)
    @rule(owner=st.sampled_from(["bob", "cyd", TEAM]), most=st.sampled_from([50, 300, 2_000]))
    def change_a_budget(self, owner, most):
        self._set_budget(owner, most)

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def the_counts_of_the_budgets_agree(self):
        today = self.model.now_ms // DAY_MS
        owners = (*TENANTS, TEAM)
        pipe = self.client.pipeline(transaction=False)
        for owner in owners:
            pipe.hget(keys.tenant(owner), "budget")
        for owner, stored in zip(owners, pipe.execute(), strict=True):
            date, day, _, held = (stored or b"1970-01-01 0 0 0").decode().split()
            assert int(held) == reserved(self.model.inflight(), owner)
            is_today = date == str(datetime.fromtimestamp(self.model.now_ms / 1000, UTC).date())
            assert (int(day) if is_today else 0) == self.model.budgets.counted[owner, today]

"""A state machine in which some tenants are in a group, and join and leave it."""

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule

from shared.store import keys
from tests.support.machine import SLUGS, START_MS, TENANTS, QueueMachine
from tests.support.model_turns import active, regroup

TEAM = "@team"


class GroupedMachine(QueueMachine):
    """Adds one group, with its own weight."""

    claims = QueueMachine.claims
    ids = QueueMachine.ids

    def set_up(self, *given, grouped=(), **options):
        """Start an empty queue, create the group and put these tenants into it."""
        super().set_up(*given, **options)
        self.client.hset(keys.tenant(TEAM), mapping={"policy": "1", "policy_weight_milli": "2000"})
        self.client.sadd(keys.groups(), TEAM.removeprefix("@"))
        self.model.weights_milli[TEAM] = 2_000
        for tenant in grouped:
            self._set_group(tenant, TEAM)

    def _set_group(self, tenant, group):
        """Set a policy that names this group, "" for none."""
        fields = {"policy": "1", "policy_group": group.removeprefix("@")}
        self.client.hset(keys.tenant(tenant), mapping=fields)
        self.client.zadd(keys.tenants(), {tenant: START_MS}, nx=True)
        self.model.first_ms[tenant] = None
        self.model.turns.policy[tenant] = group

    @rule(tenant=st.sampled_from(TENANTS[:3]), group=st.sampled_from([TEAM, TEAM, ""]))
    def move_to_a_group(self, tenant, group):
        """Change the tenant's group; the duty that recounts its jobs moves those that are queued."""
        self._set_group(tenant, group)
        for slug in SLUGS:
            self.store.reconcile(tenant, slug)
        regroup(self.model, tenant)

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def the_active_sets_of_the_store_and_of_the_model_agree(self):
        pipe = self.client.pipeline(transaction=False)
        for slug in SLUGS:
            for group in ("", TEAM):
                pipe.zrange(keys.active(slug + group), 0, -1).zrange(keys.batch(slug + group), 0, -1)
            pipe.hget(keys.tenant(TEAM), keys.service_field(slug))
        answers = iter(pipe.execute())
        for slug in SLUGS:
            for group in ("", TEAM):
                for is_batch in (False, True):
                    owners = [raw.decode() for raw in next(answers)]
                    assert owners == active(self.model, slug, group, is_batch=is_batch)
            assert int(next(answers) or 0) == self.model.turns.service[TEAM, slug]

"""Bounds how long grammars may delay the other sequences of the batch: the tenants that exceed it sit out steps.

A grammar's work for one token takes microseconds or milliseconds, and it delays every sequence in the step. Grammars
together therefore get a share of the time in which the model decodes, and the tenants with grammars divide that share
equally. A tenant that has used more than its part is in debt, and its sequences with grammars are left out of the steps
until the debt is paid. They lose no work: their tokens are the same, only later. With a step of a few milliseconds, a
common schema uses a fraction of its part. If nobody else has a sequence in a step, the grammars in it delay nobody, and
their time is not charged. A debt therefore never exceeds what a tenant's grammars take in one step.
"""

#: The grammars' share of the time in which the model decodes. With a half, the other tenants' answers take at most one
#: and a half times as long as without grammars, apart from a burst.
SHARE = 0.5
#: The most time that a tenant can save up. It is enough for the first mask of most schemas.
BURST_S = 0.02


class GrammarShare:
    """The credit of each tenant with grammars, in seconds of CPU time. Only the engine's thread uses it.

    A tenant that is not in the table has saved up as much as it may.
    """

    def __init__(self) -> None:
        self._credit_s: dict[str, float] = {}
        #: Whether anybody is charged in the current step: it has sequences other than those of tenants in debt.
        self._charges = True

    @property
    def has_spenders(self) -> bool:
        """Whether some tenant has less than it may save up, so that it may have to sit out steps."""
        return bool(self._credit_s)

    def begin_step(self, *, charges: bool) -> None:
        """Begin a step. `charges` is False if only tenants in debt have sequences in it."""
        self._charges = charges

    def spend(self, tenant: str, cpu_s: float) -> None:
        """Charge a tenant for the CPU time that one of its grammars has taken in this step."""
        if self._charges and cpu_s > 0:
            self._credit_s[tenant] = self._credit_s.get(tenant, BURST_S) - cpu_s

    def earn(self, decode_s: float) -> None:
        """Divide the share of a step whose decoding took `decode_s` among the tenants that can still save."""
        if not self._credit_s:
            return
        part_s = SHARE * decode_s / len(self._credit_s)
        raised = {tenant: credit_s + part_s for tenant, credit_s in self._credit_s.items()}
        self._credit_s = {tenant: credit_s for tenant, credit_s in raised.items() if credit_s < BURST_S}

    def sits_out(self, tenant: str) -> bool:
        """Return whether the tenant has used more than its part, so that its grammars must wait."""
        return self._credit_s.get(tenant, BURST_S) < 0

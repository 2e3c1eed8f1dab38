"""The fields of a group's policy: the weight and the bounds that hold for the tenants of a group together."""

from dataclasses import dataclass, fields

from shared.jobs.tenant_policy import FIELDS, Policy


@dataclass(frozen=True)
class GroupPolicy(Policy):
    """The settings of an operator for one group. For a field that is None, the default of a tenant applies."""

    #: The group's weight relative to other groups and to tenants without a group (default: 1).
    weight: float | None = None
    #: Bound on the queued jobs of all its tenants (default: PENSTOCK_MAX_QUEUE_SIZE).
    max_waiting: int | None = None
    #: Bound on prompt tokens plus max_tokens, summed over these jobs (default: PENSTOCK_MAX_QUEUE_TOKENS).
    max_waiting_tokens: int | None = None
    #: Budgets of all its tenants together: tokens on a day and in a month, UTC (default: unlimited), and how much a
    #: prompt token and an answer token count in them (default: 1).
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    prompt_weight: float | None = None
    answer_weight: float | None = None


#: How the fields are stored, written and parsed: as those of a tenant's policy.
GROUP_FIELDS = {field.name: FIELDS[field.name] for field in fields(GroupPolicy)}

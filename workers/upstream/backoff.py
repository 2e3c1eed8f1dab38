"""Decides after refused or failed requests whether one tenant's jobs wait, or all jobs; pure."""

from collections import OrderedDict
from dataclasses import dataclass, field

#: The pause of all tenants after troubles of two tenants in a row, in seconds. Each further one doubles it.
_FIRST_PAUSE_S = 0.25
#: The longest pause after failures, and after refusals, whose hint is respected up to that, in seconds.
_LONGEST_AFTER_FAILURE_S, _LONGEST_AFTER_REFUSAL_S = 4.0, 60.0
#: A failure did not hit an answer that continues for this many seconds after it.
_SURVIVED_S = 1.0
#: How many tenants are remembered.
_MOST_TENANTS = 256


@dataclass
class _Trouble:
    """The failures of one tenant since its last success."""

    #: The jobs that it concerned, at most two: more make no difference.
    jobs: set[str] = field(default_factory=set)
    times: int = 0
    #: Whether a request failed that the upstream had taken.
    has_failed: bool = False
    last_s: float = float("-inf")
    aside_until_s: float = float("-inf")


class Backoff:
    """Slows down those whose requests the upstream does not answer.

    A request that the upstream refuses, or that makes it fail, concerns one tenant, and must not slow down the others.
    The upstream does the same to all requests if it has too many, or is broken. So after troubles with different jobs
    of one tenant, that tenant waits. After troubles of different tenants without a success in between, everybody waits
    for a moment, and then one request at a time is sent until one succeeds. Troubles of requests that were running at
    the last one have the same cause, and do not count again.
    """

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Trouble] = OrderedDict()
        #: The tenants that had a trouble since the last success of anybody, and how many troubles followed the second
        #: of them.
        self._in_a_row: set[str] = set()
        self._times, self._has_failed = 0, False
        self._last_s = self._last_failure_s = float("-inf")

    @property
    def suspects(self) -> bool:
        """Whether only one request at a time is sent."""
        return len(self._in_a_row) >= 2

    def concerns_one_tenant(self, tenant: str) -> bool:
        """Return whether several jobs of this tenant had troubles, and none of another one since the last success."""
        return self._in_a_row <= {tenant} and len(self._tenants.get(tenant, _Trouble()).jobs) >= 2

    def note_refusal(self, tenant: str, job_id: str, hint_s: float, began_s: float, now_s: float) -> float:
        """Record that a request was refused, and for how long, by the upstream's hint. Return how long all pause, in s.

        `began_s` is when the request began.
        """
        return self._note(tenant, job_id, hint_s, _LONGEST_AFTER_REFUSAL_S, began_s, now_s)

    def note_failure(self, tenant: str, job_id: str, began_s: float, now_s: float) -> float:
        """Record that a request failed that the upstream had taken. Return how long all tenants pause, in s."""
        if began_s >= self._last_failure_s:
            self._last_failure_s = now_s
        pause_s = self._note(tenant, job_id, 0.0, _LONGEST_AFTER_FAILURE_S, began_s, now_s)
        self._has_failed = self._tenants[tenant].has_failed = True
        return pause_s

    def _note(self, tenant: str, job_id: str, hint_s: float, longest_s: float, began_s: float, now_s: float) -> float:
        trouble = self._tenants.pop(tenant, None) or _Trouble()
        self._tenants[tenant] = trouble
        while len(self._tenants) > _MOST_TENANTS:
            self._tenants.popitem(last=False)
        if len(trouble.jobs) < 2:
            trouble.jobs.add(job_id)
        if began_s >= trouble.last_s:
            trouble.times, trouble.last_s = trouble.times + 1, now_s
            if len(trouble.jobs) >= 2:
                wait_s = max(hint_s, _FIRST_PAUSE_S * 2.0 ** min(16, trouble.times - 2))
                trouble.aside_until_s = max(trouble.aside_until_s, now_s + min(longest_s, wait_s))
        self._in_a_row.add(tenant)
        if began_s < self._last_s:
            return 0.0
        self._last_s = now_s
        if not self.suspects:
            return 0.0
        self._times += 1
        return min(longest_s, _FIRST_PAUSE_S * 2.0 ** min(16, self._times - 1))

    def note_part(self, tenant: str, began_s: float, now_s: float) -> bool:
        """Record that a part of an answer has arrived whose request began at `began_s`. Return whether that is news.

        After refusals, an answer that begins is one that the upstream has taken. After failures, a part of an answer
        says little, because some servers fail in the middle of every answer; but if the request began before the last
        failure, the upstream does not fail every request.
        """
        trouble = self._tenants.get(tenant)
        if trouble is not None and not trouble.has_failed and began_s >= trouble.last_s:
            del self._tenants[tenant]
        if not self._in_a_row:
            return False
        is_taken = not self._has_failed and began_s >= self._last_s
        survived = began_s < self._last_failure_s <= now_s - _SURVIVED_S
        if is_taken or survived:
            self._forget_row()
        return is_taken or survived

    def note_success(self, tenant: str) -> None:
        self._tenants.pop(tenant, None)
        self._forget_row()

    def aside(self, now_s: float, busy: set[str]) -> tuple[str, ...]:
        """Return the tenants whose jobs are not sent now. `busy` has those with requests that are not answered yet.

        After its wait, a tenant sends one request at a time until one succeeds.
        """
        several = ((name, trouble) for name, trouble in self._tenants.items() if len(trouble.jobs) >= 2)
        return tuple(name for name, trouble in several if now_s < trouble.aside_until_s or name in busy)

    def _forget_row(self) -> None:
        self._in_a_row.clear()
        self._times, self._has_failed = 0, False

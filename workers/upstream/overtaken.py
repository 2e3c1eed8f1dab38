"""Finds requests that the upstream leaves without an answer while it answers later ones; pure.

Such a request would keep its place for as long as the upstream may be silent, and a tenant with many of them would take
all places. So an overtaken request leaves its place to another one, and a tenant may have only a few of them.
"""

from collections import Counter, deque
from collections.abc import Iterable

from shared.jobs.job import ClaimRef
from workers.upstream.run import Run

#: How many first parts of answers are remembered.
_REMEMBERED = 32
#: A request is overtaken after this time, and this many times the longest that the remembered ones took, in all or for
#: each token of their prompts.
_LEAST_S, _TIMES = 0.5, 4.0
#: The most overtaken requests of one tenant.
_MOST_OF_A_TENANT = 2


class Overtaken:
    """The overtaken requests, judged by the time to the first part of recent answers. For one thread."""

    def __init__(self) -> None:
        #: Of recent answers: when the request began, how long its first part took, and the tokens of its prompt.
        self._firsts: deque[tuple[float, float, int]] = deque(maxlen=_REMEMBERED)
        #: The tenants that may send nothing until one of their overtaken requests has ended.
        self.tenants: set[str] = set()
        #: The keys of the requests that have left their places.
        self.keys: set[ClaimRef] = set()
        #: How many places they have left. Any thread may read it.
        self.places = 0

    def note_first_part(self, run: Run, now_s: float) -> None:
        self._firsts.append((run.started_s, now_s - run.started_s, max(1, run.job.prompt_tokens)))

    def update(self, runs: Iterable[Run], now_s: float) -> bool:
        """Look which requests are overtaken now. Return whether there is room for more than before."""
        before, tenants_before = self.keys, self.tenants
        late: list[Run] = []
        if self._firsts:
            last_s = max(began_s for began_s, _, _ in self._firsts)
            took_s = max(took_s for _, took_s, _ in self._firsts)
            token_s = max(took_s / tokens for _, took_s, tokens in self._firsts)
            late = [
                run
                for run in runs
                if run.first_token_s is None
                and run.started_s < last_s
                and now_s - run.started_s > _LEAST_S + _TIMES * max(took_s, token_s * run.job.prompt_tokens)
            ]
        self.keys, self.places = {run.key for run in late}, sum(run.places for run in late)
        of_tenants = Counter(run.tenant for run in late)
        self.tenants = {tenant for tenant, count in of_tenants.items() if count >= _MOST_OF_A_TENANT}
        return not (self.keys <= before and tenants_before <= self.tenants)

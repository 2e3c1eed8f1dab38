"""Workers that store the tokens of an answer as their delivery does, so that another worker can continue it."""

from collections.abc import Sequence

from shared.jobs.answer_ids import AnswerIds
from shared.jobs.job import ClaimedJob, ClaimRef
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import an_ending, claim_one, heartbeat

#: The key with the token ids of a job's unfinished answer, without the job's id.
PARTIAL = keys.partial("")
#: The fingerprint of the model of all workers that serve the same one.
FINGERPRINT = "0123456789abcdef"


def a_start(store: Store, worker: str = "w1", *, fingerprint: str = FINGERPRINT) -> ClaimedJob:
    """Claim one job for a worker whose model has this fingerprint."""
    heartbeat(store, worker, facts={"fingerprint": fingerprint})
    return claim_one(store, worker)


class Answer:
    """The answer of one claim."""

    def __init__(self, store: Store, job: ClaimedJob | ClaimRef, *, fingerprint: str = FINGERPRINT) -> None:
        held, kept = (job.held, job.answer) if isinstance(job, ClaimedJob) else (job, ())
        self._store, self._held = store, held
        self.ids = AnswerIds(held.token, fingerprint, kept)
        self.tokens = len(kept)

    def goes_on(self, text: str, ids: Sequence[int], *, stored: bool = True) -> None:
        """Append text with the ids of its tokens; with `stored` false, the call fails before the store gets it."""
        self.tokens += len(ids)
        packed = self.ids.add(ids, self.tokens)
        if stored:
            assert self._store.append([(self._held, text, self.tokens)], {self._held.id: packed}).lost == []


def give_back(store: Store, job: ClaimedJob | ClaimRef, worker: str = "w1") -> None:
    """Put the job back into its queue, as a worker that drains does."""
    assert store.release(worker, [job.held if isinstance(job, ClaimedJob) else job]) == 1


def answer_in_two_attempts(store: Store, held: ClaimRef, first: Sequence[str], rest: Sequence[str]) -> None:
    """Append the first texts, one token each, and give the job back; then append the other texts, and settle it."""
    answer = Answer(store, held)
    for number, text in enumerate(first):
        answer.goes_on(text, [number])
    give_back(store, held)
    job = a_start(store)
    assert len(job.answer) == len(first)
    answer = Answer(store, job)
    for number, text in enumerate(rest):
        answer.goes_on(text, [number])
    store.settle(an_ending(job.held, text="".join([*first, *rest]), finish_reason="stop"), "w1")

"""Tests of jobs with several candidates in the store: their estimates, the cells that they need, what is kept."""

import pytest

from shared.jobs.job import Usage
from shared.store import keys
from tests.support.answers import Answer, a_start, give_back
from tests.support.builders import a_job, admitted, an_ending, claim, claim_one, heartbeat, view_of


def several(n: int, **fields):
    """Return a job with `n` candidates of at most 20 tokens each."""
    return a_job(**({"payload": {"prompt": "hello", "n": n}, "max_tokens": 20 * n} | fields))


def test_the_estimated_cost_is_that_of_the_prompt_and_of_all_answers(store):
    heartbeat(store)
    store.client.hset(keys.tenant("blue"), mapping={"len_n": 10, "len_mean": 12, "len_p50": 12, "len_p20": 12})
    one = admitted(store, a_job(cost_mwt=None))
    four = admitted(store, several(4, cost_mwt=None))
    costs = [int(store.client.hget(keys.rq_job(job_id), "penstock_cost_mwt")) for job_id in (one, four)]
    assert costs == [10_000 + 4_000 * 12, 10_000 + 4 * 4_000 * 12]


def test_a_quote_estimates_all_answers(store):
    heartbeat(store)
    admitted(store, a_job())
    store.client.hset(keys.tenant("blue"), mapping={"len_n": 10, "len_mean": 12, "len_p50": 12, "len_p20": 12})
    sizes = {"prompt_tokens": 10, "deadline_ms": 60_000}
    assert store.quote(a_job(max_tokens=80, payload={"n": 4}, **sizes)).cost_mwt == 10_000 + 4 * 4_000 * 12
    assert store.quote(a_job(max_tokens=8, payload={"n": 4}, **sizes)).cost_mwt == 10_000 + 4_000 * 8


def test_candidates_need_the_cells_of_the_prompt_and_of_one_answer(store):
    heartbeat(store, cells=40)
    job = admitted(store, several(16))
    assert claim(store, cells_free=29) == []
    [claimed] = claim(store, cells_free=30)
    assert (claimed.id, claimed.max_tokens, claimed.cells) == (job, 320, 30)


def test_the_lengths_of_single_answers_are_learned(store):
    heartbeat(store)
    admitted(store, several(4))
    store.settle(an_ending(claim_one(store).held, usage=Usage(10, 0, 64, 5, 100, 7)), "w1")
    admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held, usage=Usage(10, 0, 16, 5, 100, 7)), "w1")
    [bucket] = store.client.hget(keys.tenant("blue"), "len_hist").split()
    assert bucket.endswith(b":2")


def test_a_job_continues_after_its_last_token_although_the_ends_of_candidates_are_kept_too(store):
    heartbeat(store)
    admitted(store, several(2, max_tokens=4))
    job = a_start(store)
    end = (1 << 31) + 250_000
    Answer(store, job).goes_on("text", (5, 6, end, 7, 8))
    give_back(store, job)
    assert a_start(store).answer == (5, 6, end, 7, 8)


@pytest.mark.parametrize("spoiled", ["abc", "-3", "1e300", "0"])
def test_a_spoiled_number_of_candidates_harms_nobody(store, spoiled):
    heartbeat(store)
    job_id = admitted(store, several(4))
    store.client.hset(keys.rq_job(job_id), "penstock_candidates", spoiled)
    held = claim_one(store).held
    store.settle(an_ending(held), "w1")
    assert view_of(store, job_id).state.value == "succeeded"


def test_a_job_of_a_door_that_knows_no_candidates_has_one(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    assert not store.client.hexists(keys.rq_job(job_id), "penstock_candidates")
    assert claim_one(store).cells == 30

"""Tests that lengths are learned from answers: one that was cut says only that it would have been longer."""

import random
from collections import Counter

import pytest

from shared.jobs.job import Usage
from shared.jobs.outcomes import Outcome
from shared.store import keys
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, an_ending, claim_one
from tests.support.model_lengths import Lengths, bucket_of, middle_of

#: A token takes 20 ms, and the ten prompt tokens of each job take 10 ms.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}
FIGURES = ("p10", "p20", "p35", "p50", "p90")
STOP, LENGTH = "stop", "length"


@pytest.fixture
def pool(store, clock):
    """A pool with known rates and a clock that stands still."""
    store.renew(a_heartbeat(facts=RATES, cells=100_000), [])
    return store


def answer(pool, tokens: int, reason: str, *, tenant: str = "blue", times: int = 1) -> None:
    """Run jobs of a tenant that succeed with `tokens` tokens."""
    for _ in range(times):
        end(pool, tokens, Outcome.SUCCEEDED, tenant=tenant, finish_reason=reason)


def end(pool, tokens: int, outcome: Outcome, *, tenant: str = "blue", **ending) -> None:
    """Run a job of a tenant that ends with this outcome after `tokens` tokens."""
    admitted(pool, a_job(tenant, max_tokens=max(1, tokens), cost_mwt=90_000, deadline_ms=9_000_000))
    held = claim_one(pool, cells_free=100_000).held
    pool.settle(an_ending(held, outcome, usage=Usage(10, 0, tokens, 1, 1, 1), **ending), "w1")


def expected(pool, max_tokens: int, tenant: str = "blue") -> tuple[float, float]:
    """Return the tokens that a quote assumes for the end of an answer, and those that it assumes for the cost."""
    quote = pool.quote(a_job(tenant, max_tokens=max_tokens, deadline_ms=9_000_000))
    assert quote.eta_ms is not None
    return (quote.eta_ms - 10) / 20, (quote.cost_mwt - 10_000) / 4_000


def stored(pool, key: str) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in pool.client.hgetall(key).items()}


def same_bucket(tokens: float, other: float) -> bool:
    return bucket_of(int(tokens)) == bucket_of(int(other))


def test_answers_that_max_tokens_cut_to_one_token_do_not_promise_short_answers(pool):
    answer(pool, 1, LENGTH, times=9)
    assert expected(pool, 400) == (128, 128)
    assert expected(pool, 1) == (1, 1)


def test_a_tenant_that_asks_for_one_token_every_other_time_is_expected_to_write_whole_answers_otherwise(pool):
    for _ in range(20):
        answer(pool, 1, LENGTH)
        answer(pool, 300, STOP)
    median, mean = expected(pool, 400)
    assert same_bucket(median, 300)
    assert mean == pytest.approx(300, rel=0.1)
    assert expected(pool, 1) == (1, 1)


def test_answers_that_are_always_cut_are_expected_to_be_cut_again(pool):
    answer(pool, 400, LENGTH, times=9)
    assert expected(pool, 400) == (400, 400)
    assert expected(pool, 300) == (300, 300)
    # Nobody knows how much longer they would be: half of them are guessed to be more than twice as long.
    median, mean = expected(pool, 10_000)
    assert same_bucket(median, 800)
    assert mean == 800


def test_short_and_cut_answers_cost_what_they_have_cost_for_the_same_max_tokens(pool):
    for _ in range(10):
        answer(pool, 50, STOP)
        answer(pool, 400, LENGTH)
    median, mean = expected(pool, 400)
    assert same_bucket(median, 50)
    assert mean == pytest.approx(225, rel=0.05)
    # Half of the answers are longer than 400 tokens, probably 800.
    assert expected(pool, 10_000)[1] == pytest.approx(425, rel=0.05)


def test_one_whole_answer_does_not_stand_for_forty_that_were_cut_before_it(pool):
    answer(pool, 1, LENGTH, times=40)
    answer(pool, 3, STOP)
    assert expected(pool, 400) == (128, 128)
    answer(pool, 3, STOP, times=8)
    assert expected(pool, 400)[0] == 3


def test_a_tenant_that_asks_for_one_token_does_not_spoil_the_predictions_for_others(pool):
    answer(pool, 300, STOP, tenant="green", times=10)
    answer(pool, 1, LENGTH, times=40)
    median, mean = expected(pool, 400, "newcomer")
    assert same_bucket(median, 300)
    assert mean == pytest.approx(300, rel=0.05)


def test_what_is_unknown_of_a_tenant_is_guessed_by_the_answers_of_its_pool(pool):
    answer(pool, 900, STOP, tenant="green", times=10)
    answer(pool, 1, LENGTH, times=9)
    median, mean = expected(pool, 4_000)
    assert same_bucket(median, 900)
    assert mean == pytest.approx(900, rel=0.05)


def test_an_answer_that_the_deadline_stopped_would_have_been_longer(pool):
    answer(pool, 50, STOP, times=3)
    for _ in range(9):
        end(pool, 200, Outcome.EXPIRED, code="deadline_exceeded", finish_reason="deadline")
    assert expected(pool, 200)[0] == 200
    assert expected(pool, 400)[0] > 300


def test_a_whole_answer_that_was_late_is_whole(pool, clock):
    for _ in range(8):
        admitted(pool, a_job(max_tokens=4_000, deadline_ms=300_000))
        held = claim_one(pool, cells_free=100_000).held
        clock.pass_ms(1)
        pool.client.hset(keys.rq_job(held.id), "penstock_deadline_ms", 1)
        settled = pool.settle(an_ending(held, usage=Usage(10, 0, 700, 1, 1, 1)), "w1")
        assert settled.outcome is Outcome.EXPIRED
    pool.renew(a_heartbeat(facts=RATES, cells=100_000), [])
    assert same_bucket(expected(pool, 4_000)[0], 700)


@pytest.mark.parametrize(
    ("outcome", "tokens", "code"),
    [(Outcome.CANCELED, 1, "canceled"), (Outcome.FAILED, 5, "engine_error"), (Outcome.EXPIRED, 0, "deadline_exceeded")],
)
def test_other_endings_teach_nothing(pool, outcome, tokens, code):
    for _ in range(9):
        end(pool, tokens, outcome, code=code)
    assert "len_n" not in stored(pool, keys.tenant("blue"))
    assert "len_n" not in stored(pool, keys.books(MODEL))


def test_degradation_does_not_make_answers_seem_shorter(pool):
    for tokens in (60, 90, 120, 150, 190) * 4:
        answer(pool, 300, STOP)
        answer(pool, tokens, LENGTH)
    assert same_bucket(expected(pool, 400)[0], 300)


def test_embeddings_have_empty_answers(pool):
    answer(pool, 0, STOP, times=9)
    assert expected(pool, 1) == (1, 1)
    assert stored(pool, keys.tenant("blue"))["len_p90"] == "0"


def test_whole_lengths_are_estimated_as_if_nothing_had_been_cut(pool):
    """The bound of each answer has nothing to do with its length; half of the answers are cut."""
    rng = random.Random(5)
    for _ in range(90):
        whole, max_tokens = round(50 * 20 ** rng.random()), round(50 * 40 ** rng.random())
        answer(pool, min(whole, max_tokens), STOP if whole < max_tokens else LENGTH)
    found = stored(pool, keys.tenant("blue"))
    assert sum(int(entry.partition(":")[2]) for entry in found["len_cut"].split()) > 20
    for name, share in (("len_p20", 0.2), ("len_p50", 0.5)):
        assert abs(bucket_of(int(found[name])) - bucket_of(round(50 * 20**share))) <= 2
    # The mean of lengths from 50 to 1,000 whose logarithms are uniform is 950 / ln 20.
    assert expected(pool, 1_000)[1] == pytest.approx(317, rel=0.2)


def test_the_scripts_estimate_like_the_model(pool):
    rng = random.Random(7)
    mine, of_pool = (Lengths(Counter({20: 40, 30: 20}), Counter({9: 5, 25: 40}), total=9_000) for _ in range(2))
    for key in (keys.tenant("blue"), keys.books(MODEL)):
        pool.client.hset(key, mapping={"len_hist": "9:5 20:40 25:40 30:20", "len_cut": "9:5 25:40", "len_sum": 9_000})
    for _ in range(50):
        tokens, is_cut = rng.choice([0, 1, 2, 3, 17, 40, 41, 150, 1_000, 3_000]), rng.random() < 0.6
        answer(pool, tokens, LENGTH if is_cut else STOP)
        mine.learn(tokens, is_cut=is_cut, pool=of_pool)
        of_pool.learn(tokens, is_cut=is_cut)
        for key, lengths in ((keys.tenant("blue"), mine), (keys.books(MODEL), of_pool)):
            found = stored(pool, key)
            assert int(found["len_n"]) == lengths.n
            assert [float(found[f"len_{name}"]) for name in FIGURES] == [lengths.quantile(name) for name in FIGURES]
            assert float(found["len_mean"]) == lengths.known_mean
            tail = tuple(map(float, found["len_tail"].split())) or (0.0, 0.0, 0.0)
            assert tail == lengths.tail


def test_a_store_of_a_version_that_knew_no_cut_answers_is_read_and_written(pool):
    """Such a version counts all answers as whole, and keeps `len_hist`, `len_n` and `len_sum` as this one does."""
    old = {"len_hist": "1:9 34:30", "len_n": 39, "len_sum": 9_009, "len_mean": 231} | {f"len_{f}": 304 for f in FIGURES}
    answer(pool, 1, LENGTH)
    pool.client.hset(keys.tenant("blue"), mapping=old)
    assert expected(pool, 400) == (304, 231)
    answer(pool, 300, STOP)
    found = stored(pool, keys.tenant("blue"))
    assert (found["len_hist"], found["len_cut"], found["len_n"], found["len_sum"]) == ("1:9 34:31", "1:1", "40", "9309")
    assert same_bucket(float(found["len_p50"]), middle_of(34))


@pytest.mark.parametrize(
    "spoiled",
    [
        {"len_hist": "x"},
        {"len_hist": "500:3 34:1 34:1"},
        {"len_cut": "34:500"},
        {"len_cut": "-3:4 1:1:1 2:"},
        {"len_tail": "9000 x"},
        {"len_tail": "99999 9 99999999999999999999"},
        {"len_mean": "nan", "len_sum": "abc"},
    ],
)
def test_spoiled_lengths_stop_no_jobs(pool, spoiled):
    answer(pool, 300, STOP, times=9)
    pool.client.hset(keys.tenant("blue"), mapping=spoiled)
    assert all(1 <= tokens <= 400 for tokens in expected(pool, 400))
    answer(pool, 300, STOP, times=9)
    assert same_bucket(expected(pool, 400)[0], 300)

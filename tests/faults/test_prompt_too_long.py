"""Tests that a job whose prompt a worker finds too long is tried once with fewer passages, and leaks nothing."""

from dataclasses import replace
from typing import Any

import pytest

from shared.audit.invariants import find_breaches
from shared.jobs.fewer_passages import add_fewer
from shared.jobs.job import JobView
from shared.jobs.states import JobState
from shared.store.store import Store
from tests.support.budgets import counted, set_budget
from tests.support.builders import a_job, admitted, view_of
from tests.support.one_worker import MODEL, FlakyStore, OneWorker, make_worker
from web.api.citations import Citation, Retrieved, changes_of

#: Of a context of 64 tokens; `sim` counts words. The door has estimated 30 tokens for the first prompt.
LONG, SHORT, STILL_LONG = "word " * 100, "word " * 20, "word " * 80
CITED = Retrieved(tuple(Citation(f"{number}.md", 0, 0.5) for number in range(4)), (), 4)


@pytest.fixture
def flaky(redis_client) -> FlakyStore:
    return FlakyStore(redis_client)


def admit(store: Store, payload: dict[str, Any], **overrides: Any) -> str:
    job = a_job(model=MODEL, payload=payload, prompt_tokens=30, max_tokens=8, cost_mwt=None, **overrides)
    return admitted(store, replace(job, request=job.request.replaced(form=CITED.form())))


def ended(worker: OneWorker, job_id: str) -> JobView:
    worker.run_until(worker.all_ended)
    return view_of(worker.store, job_id)


@pytest.mark.parametrize(
    "payload",
    [
        add_fewer({"prompt": LONG}, {"prompt": SHORT}, 2),
        add_fewer(
            {"messages": [{"role": "user", "content": LONG}]}, {"messages": [{"role": "user", "content": SHORT}]}, 2
        ),
    ],
)
def test_a_prompt_that_is_too_long_by_the_exact_count_is_tried_with_fewer_passages(flaky, payload):
    worker = make_worker(flaky, PENSTOCK_N_CTX="64")
    set_budget(flaky, tokens_per_day=10_000)
    view = ended(worker, admit(flaky, payload))
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
    assert view.usage is not None
    assert (view.usage.prompt_tokens, view.usage.completion_tokens) == (20, 8)
    # The reservation for the first prompt is given back, and the second prompt is charged.
    assert counted(flaky) == (28, 28, 0)
    retrieved = Retrieved.read(view)
    assert retrieved is not None
    assert [each.document for each in retrieved.citations] == ["0.md", "1.md"]
    assert [(each.what, each.before, each.after, each.why) for each in changes_of(view)] == [
        ("passages", 4, 2, "context")
    ]
    assert find_breaches(flaky.client) == []
    assert (len(worker.claimed_jobs), worker.engine.free_capacity().slots) == (0, 1)


def test_a_second_choice_that_is_too_long_as_well_fails_the_job_and_frees_its_slot(flaky):
    worker = make_worker(flaky, PENSTOCK_N_CTX="64")
    set_budget(flaky, tokens_per_day=10_000)
    failed = admit(flaky, add_fewer({"prompt": LONG}, {"prompt": STILL_LONG}, 2))
    after = admit(flaky, {"prompt": SHORT})
    view = ended(worker, failed)
    assert (view.state, view.code, view.attempts) == (JobState.FAILED, "context_length_exceeded", 1)
    assert "80 prompt tokens" in view.message
    assert view_of(flaky, after).state == JobState.SUCCEEDED
    assert counted(flaky) == (28, 28, 0)
    assert find_breaches(flaky.client) == []


def test_a_job_that_fits_keeps_all_of_its_passages(flaky):
    worker = make_worker(flaky, PENSTOCK_N_CTX="64")
    view = ended(worker, admit(flaky, add_fewer({"prompt": "word " * 40}, {"prompt": SHORT}, 2)))
    assert view.usage is not None
    assert view.usage.prompt_tokens == 40
    assert changes_of(view) == []


def test_a_long_prompt_is_prepared_on_another_thread_and_then_tried_with_fewer_passages(flaky):
    worker = make_worker(flaky, PENSTOCK_N_CTX="64")
    job_id = admit(flaky, add_fewer({"prompt": "word " * 3_000}, {"prompt": SHORT}, 0))
    worker.run_until(lambda: len(worker.claimed_jobs) == 1)
    assert worker.job_loop.wake.wait(60)
    view = ended(worker, job_id)
    assert view.state == JobState.SUCCEEDED
    retrieved = Retrieved.read(view)
    assert retrieved is not None
    assert retrieved.citations == ()


def test_a_claim_whose_answer_was_lost_tries_the_second_choice_of_its_job_once(flaky):
    worker = make_worker(flaky, PENSTOCK_N_CTX="64")
    job_id = admit(flaky, add_fewer({"prompt": LONG}, {"prompt": SHORT}, 2))
    flaky.lose_answer_of = "claim"
    with pytest.raises(Exception, match="the answer is lost"):
        worker.job_loop.one_pass()
    view = ended(worker, job_id)
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
    assert find_breaches(flaky.client) == []

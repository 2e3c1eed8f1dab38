"""Tests of the scripts of webhooks: every way a job ends is told, fair turns, one process at a time, a day of tries."""

import pytest

from shared.jobs.job import JobView
from shared.jobs.outcomes import Outcome
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.batches.batches import (
    ENDED,
    Batches,
    BatchProgress,
    BatchStatus,
    ClaimedBatch,
    ClaimLost,
    StoredBatch,
)
from shared.store.batches.files import Files
from shared.store.store import Store
from shared.store.webhook_results import WebhookResult
from shared.store.webhooks import ClaimedWebhook, Pending, Webhooks
from tests.support.builders import (
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    contents,
    heartbeat,
    hold_clock,
    stat,
    view_of,
)

URL = "https://example.com/hook"
LEASE_MS = 60_000
DAY_MS = 86_400_000


@pytest.fixture
def webhooks(store: Store) -> Webhooks:
    heartbeat(store)
    return Webhooks(store.client)


def ended_job(store: Store, tenant: str = "blue", url: str = URL) -> str:
    """Admit a job and cancel it, so that its end is to be told."""
    job_id = admitted(store, a_job(tenant, callback_url=url))
    store.cancel(job_id)
    return job_id


def claimed(webhooks: Webhooks, *, busy: tuple[str, ...] = ()) -> ClaimedWebhook:
    found = webhooks.claim("t", lease_ms=LEASE_MS, busy=busy)
    assert isinstance(found, ClaimedWebhook), found
    return found


def none_due(webhooks: Webhooks) -> bool:
    return not isinstance(webhooks.claim("t", lease_ms=LEASE_MS), ClaimedWebhook)


def told_view(webhook: ClaimedWebhook) -> JobView:
    subject = webhook.subject()
    assert isinstance(subject, JobView)
    return subject


def succeed(store: Store, job_id: str) -> None:
    store.settle(an_ending(claim_one(store).held), "w1")


def fail(store: Store, job_id: str) -> None:
    store.settle(an_ending(claim_one(store).held, Outcome.FAILED, code="engine_error"), "w1")


def cancel_queued(store: Store, job_id: str) -> None:
    store.cancel(job_id)


def cancel_running(store: Store, job_id: str) -> None:
    held = claim_one(store).held
    store.cancel(job_id)
    store.settle(an_ending(held), "w1")


def expire_queued(store: Store, job_id: str) -> None:
    advance_clock(store, 61_000)
    heartbeat(store)
    store.reap()


def lose_worker(store: Store, job_id: str) -> None:
    claim_one(store)
    store.cancel(job_id)
    for _ in range(60):
        advance_clock(store, 1_500)
        heartbeat(store, "other")
        store.reap()


ENDS = {
    succeed: JobState.SUCCEEDED,
    fail: JobState.FAILED,
    cancel_queued: JobState.CANCELED,
    cancel_running: JobState.CANCELED,
    expire_queued: JobState.EXPIRED,
    lose_worker: JobState.CANCELED,
}


@pytest.mark.parametrize("end", ENDS)
def test_however_a_job_ends_its_client_is_to_be_told_of_just_that(store, webhooks, end):
    job_id = admitted(store, a_job(callback_url=URL))
    assert none_due(webhooks)
    end(store, job_id)
    webhook = claimed(webhooks)
    view = told_view(webhook)
    assert (webhook.id, webhook.tenant, webhook.url, webhook.tries) == (job_id, "blue", URL, 0)
    assert view.state is ENDS[end]
    assert view.text == view_of(store, job_id).text
    assert none_due(webhooks)


def test_a_job_without_a_url_leaves_nothing_to_tell(store, webhooks):
    store.cancel(admitted(store, a_job()))
    assert none_due(webhooks)
    assert not store.client.keys("penstock:webhook*")


def test_a_delivered_webhook_leaves_nothing_but_its_mark_in_the_job(store, webhooks):
    job_id = ended_job(store)
    assert webhooks.write(claimed(webhooks), WebhookResult.DELIVERED, rest_ms=0) == "told"
    assert not store.client.keys("penstock:webhook*")
    assert view_of(store, job_id).webhook == "delivered 1 delivered"
    assert stat(store, "webhooks|delivered") == 1


def test_a_failed_try_is_repeated_after_its_rest_with_the_number_of_tries(store, webhooks):
    hold_clock(store)
    job_id = ended_job(store)
    assert webhooks.write(claimed(webhooks), WebhookResult.BAD_STATUS, rest_ms=5_000) == "waits"
    assert webhooks.claim("t", lease_ms=LEASE_MS) == 5_000
    advance_clock(store, 5_000)
    assert claimed(webhooks).tries == 1
    assert view_of(store, job_id).webhook == "waiting 1 bad_status"


def test_a_process_that_lost_its_claim_changes_nothing(store, webhooks):
    ended_job(store)
    lost = claimed(webhooks)
    advance_clock(store, LEASE_MS)
    current = webhooks.claim("u", lease_ms=LEASE_MS)
    assert isinstance(current, ClaimedWebhook)
    before = contents(store)
    assert webhooks.write(lost, WebhookResult.DELIVERED, rest_ms=0) == "lost"
    assert contents(store) == before
    assert webhooks.write(current, WebhookResult.DELIVERED, rest_ms=0) == "told"
    assert webhooks.write(current, WebhookResult.DELIVERED, rest_ms=0) == "lost"


def test_tenants_take_turns_however_many_webhooks_one_of_them_has(store, webhooks):
    hold_clock(store)
    for _ in range(5):
        ended_job(store, "loud")
    advance_clock(store, 10)
    ended_job(store, "quiet")
    order = []
    for _ in range(4):
        advance_clock(store, 1)
        order.append(claimed(webhooks).tenant)
    assert order == ["loud", "quiet", "loud", "loud"]


def test_a_tenant_with_as_many_open_tries_as_it_may_have_is_passed_over(store, webhooks):
    hold_clock(store)
    ended_job(store, "loud")
    advance_clock(store, 1)
    ended_job(store, "quiet")
    assert claimed(webhooks, busy=("loud",)).tenant == "quiet"
    assert webhooks.claim("t", lease_ms=LEASE_MS, busy=("loud",)) == LEASE_MS
    assert claimed(webhooks).tenant == "loud"


def test_the_last_try_is_made_when_the_day_ends_and_then_it_is_given_up(store, webhooks):
    hold_clock(store)
    job_id = ended_job(store)
    webhook, waited_ms = claimed(webhooks), 0
    while webhooks.write(webhook, WebhookResult.UNREACHABLE, rest_ms=1_700_000) == "waits":
        rest_ms = webhooks.claim("t", lease_ms=LEASE_MS)
        assert isinstance(rest_ms, int)
        advance_clock(store, rest_ms)
        waited_ms += rest_ms
        webhook = claimed(webhooks)
    assert waited_ms == DAY_MS
    assert not store.client.keys("penstock:webhook*")
    # The job's own record has expired long before.
    assert stat(store, "webhooks|gave_up") == 1
    assert stat(store, "webhooks|unreachable") == webhook.tries + 1
    assert job_id == webhook.id


def test_the_copy_outlives_the_job_and_is_counted_with_its_tenants_bytes(store, webhooks):
    job_id = admitted(store, a_job(callback_url=URL))
    succeed(store, job_id)
    copied = int(store.client.hget(keys.webhook(job_id), "bytes"))
    held = int(store.client.hget(keys.kept("blue"), "ended"))
    assert held > copied > len("some words")
    store.client.delete(keys.rq_job(job_id), keys.result(job_id))
    webhook = claimed(webhooks)
    assert told_view(webhook).text == "some words"
    webhooks.write(webhook, WebhookResult.DELIVERED, rest_ms=0)
    assert int(store.client.hget(keys.kept("blue"), "ended")) == held - copied


def test_an_erased_text_is_told_to_nobody(store, webhooks):
    job_id = admitted(store, a_job(callback_url=URL))
    succeed(store, job_id)
    store.erase(job_id)
    assert told_view(claimed(webhooks)).text is None


def test_the_gauges_count_what_is_to_be_told_and_know_the_oldest(store, webhooks):
    hold_clock(store)
    assert webhooks.pending() == Pending(0, None)
    ended_job(store)
    oldest_ms = view_of(store, ended_job(store)).now_ms
    advance_clock(store, 1_000)
    ended_job(store, "red")
    assert webhooks.pending() == Pending(3, oldest_ms)
    assert (webhooks.count_of("blue"), webhooks.count_of("red"), webhooks.count_of("green")) == (2, 1, 0)


@pytest.mark.parametrize("lost", ["webhooks", "webhook_due:blue", "webhook_turns"])
def test_a_webhook_is_told_although_another_program_deletes_an_index(store, webhooks, lost):
    ended_job(store)
    store.client.delete(f"penstock:{lost}")
    store.sweep("inflight", 0)
    assert webhooks.write(claimed(webhooks), WebhookResult.DELIVERED, rest_ms=0) == "told"


@pytest.mark.parametrize("key", ["webhook_due:blue", "webhook_turns"])
def test_a_time_far_in_the_future_is_corrected(store, webhooks, key):
    job_id = ended_job(store)
    member = "blue" if key == "webhook_turns" else job_id
    store.client.zadd(f"penstock:{key}", {member: 1e300})
    store.sweep("inflight", 0)
    claimed(webhooks)


def test_a_webhook_whose_record_is_gone_is_forgotten(store, webhooks):
    job_id = ended_job(store)
    store.client.delete(keys.webhook(job_id))
    assert none_due(webhooks)
    assert not store.client.keys("penstock:webhook*")


@pytest.mark.parametrize("field", ["record", "kind", "result"])
def test_a_spoiled_copy_is_no_subject(store, webhooks, field):
    job_id = ended_job(store)
    store.client.hset(keys.webhook(job_id), field, "abc" if field != "kind" else "batch")
    subject = claimed(webhooks).subject()
    assert subject is None or field == "result"


def test_an_end_is_to_be_told_although_the_store_is_full(store, webhooks, memory_is_full):
    job_id = admitted(store, a_job(callback_url=URL))
    with memory_is_full():
        store.cancel(job_id)
        assert webhooks.write(claimed(webhooks), WebhookResult.UNREACHABLE, rest_ms=0) == "waits"
        assert webhooks.write(claimed(webhooks), WebhookResult.DELIVERED, rest_ms=0) == "told"


def test_a_result_that_is_too_long_is_not_copied(store, webhooks):
    job_id = admitted(store, a_job(callback_url=URL, max_tokens=1_000))
    store.settle(an_ending(claim_one(store).held, text="x" * 1_100_000), "w1")
    webhook = claimed(webhooks)
    assert (webhook.id, webhook.is_cut, told_view(webhook).text) == (job_id, True, None)


def a_claimed_batch(store: Store) -> tuple[Batches, ClaimedBatch]:
    files, batches = Files(store.client), Batches(store.client)
    files.add_part("f", "blue", 0, b"{}\n")
    files.close("f", "blue", purpose="batch", filename="lines", ttl_s=86_400)
    batches.create("batch_1", "blue", "f", {"callback_url": URL}, window_ms=3_600_000, ttl_s=3_600)
    mine = batches.claim("t", lease_ms=LEASE_MS)
    assert isinstance(mine, ClaimedBatch)
    return batches, mine


@pytest.mark.parametrize("status", sorted(ENDED))
def test_the_end_of_a_batch_is_to_be_told_once_whatever_it_is(store, webhooks, status):
    batches, mine = a_claimed_batch(store)
    batches.write(mine, BatchProgress(change=(BatchStatus.VALIDATING, BatchStatus.FINALIZING)), rest_ms=LEASE_MS)
    assert none_due(webhooks)
    batches.write(mine, BatchProgress(change=(BatchStatus.FINALIZING, status)), rest_ms=0, ends=True)
    with pytest.raises(ClaimLost):
        batches.write(mine, BatchProgress(change=(BatchStatus.FINALIZING, status)), rest_ms=0, ends=True)
    webhook = claimed(webhooks)
    subject = webhook.subject()
    assert isinstance(subject, StoredBatch)
    assert (webhook.id, subject.status, subject.tenant) == ("batch_1", status, "blue")
    webhooks.write(webhook, WebhookResult.DELIVERED, rest_ms=0)
    found = batches.find("batch_1", "blue")
    assert found is not None
    assert found.fields["webhook"] == "delivered 1 delivered"
    assert none_due(webhooks)

"""A test of webhooks of jobs that end twice under one id."""

from shared.store import keys
from shared.store.store import Store
from shared.store.webhook_results import WebhookResult
from shared.store.webhooks import ClaimedWebhook, Webhooks
from tests.support.builders import a_job, admitted, heartbeat


def claimed(webhooks: Webhooks, token: str) -> ClaimedWebhook:
    found = webhooks.claim(token, lease_ms=60_000)
    assert isinstance(found, ClaimedWebhook), found
    return found


def counted_bytes(store: Store) -> int:
    return int(store.client.hget(keys.kept("blue"), "ended"))


def test_a_job_that_is_admitted_anew_with_the_same_id_is_told_of_its_own_end_and_counted_once(store):
    heartbeat(store)
    job, webhooks = a_job(callback_url="https://example.com/hook"), Webhooks(store.client)
    job_id = admitted(store, job)
    store.cancel(job_id)
    first, counted = claimed(webhooks, "t"), counted_bytes(store)
    copied = int(first.fields["bytes"])
    # The record of the job expires, its webhook does not; a client may then use the id of its request again.
    store.client.delete(keys.rq_job(job_id), keys.result(job_id), keys.events(job_id))
    assert admitted(store, job) == job_id
    store.cancel(job_id)
    # Two jobs are counted, and only one copy.
    assert counted_bytes(store) - 2 * (counted - copied) < 1.5 * copied
    assert webhooks.write(first, WebhookResult.DELIVERED, rest_ms=0) == "lost"
    second = claimed(webhooks, "u")
    assert (second.id, second.tries) == (job_id, 0)
    webhooks.write(second, WebhookResult.DELIVERED, rest_ms=0)

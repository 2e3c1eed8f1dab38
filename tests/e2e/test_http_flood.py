"""In a flood, the door repeats the store's refusal; its clients and its metrics show no difference."""

from dataclasses import replace

from shared.clock import ManualClock
from shared.store import keys
from tests.support.builders import reconfigure, stat
from tests.support.door import admitted_job, refused, serve, submit
from tests.support.processes import wait_for
from web.app import create_app

FULL = "refused|default|inflight_full"


def test_of_many_requests_one_is_admitted_and_each_other_is_refused_and_counted(store, settings):
    serve(store)
    reconfigure(store, settings, max_inflight=1)
    # In a time that stands still, every refusal after the first few is a repetition.
    client = create_app(replace(settings, auth="open"), store, ManualClock()).test_client()
    admitted_job(submit(client))
    # The first refusals make reservations for their clients, as many as the tenant may have.
    store.client.hset(keys.tenant("default"), "policy_max_waiting", 1)
    asked = [refused(submit(client), "inflight_full") for _ in range(9)]
    store.client.config_resetstat()
    repeated = [refused(submit(client), "inflight_full") for _ in range(11)]
    assert {name: type(value) for name, value in repeated[-1].items()} == {
        name: type(value) for name, value in asked[-1].items()
    }
    assert repeated[-1]["limits"] == asked[-1]["limits"]
    wait_for(lambda: stat(store, FULL) == 20, "the count of all refusals")
    assert stat(store, "yielded") == 20
    assert store.client.info("commandstats")["cmdstat_evalsha"]["calls"] < 11

"""Exemplars: /metrics/fleet names a job in each bucket of the histograms of jobs' times, in OpenMetrics only."""

import re

from flask.testing import FlaskClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar

from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.door import a_door, admitted_job, run_next, serve, settle, submit

ACCEPT = {"Accept": "application/openmetrics-text; version=1.0.0"}


def exemplars(client: FlaskClient) -> dict[str, list[Exemplar]]:
    """Return the exemplars on the page by the name of the histogram, lowest bucket first."""
    found: dict[str, list[Exemplar]] = {}
    for family in text_string_to_metric_families(client.get("/metrics/fleet", headers=ACCEPT).text):
        found[family.name] = [sample.exemplar for sample in family.samples if sample.exemplar is not None]
    return found


def ended_job(client: FlaskClient, store: Store) -> str:
    job = admitted_job(submit(client))
    settle(store, run_next(store))
    return str(job["id"])


def test_the_times_of_a_job_name_the_newest_job_of_their_bucket(store: Store, settings: Settings) -> None:
    client = a_door(store, settings)
    serve(store)
    ended_job(client, store)
    newest = ended_job(client, store)
    found = exemplars(client)
    for name in (
        "penstock_queue_wait_seconds",
        "penstock_time_to_first_token_seconds",
        "penstock_time_per_output_token_seconds",
        "penstock_request_duration_seconds",
    ):
        assert {"job_id": newest} in [exemplar.labels for exemplar in found[name]], name
        assert all(0 <= exemplar.value <= 640 for exemplar in found[name])
    # A value that is not a job's time names no job.
    assert found["penstock_retry_hint_seconds"] == []


def test_the_text_format_has_no_exemplars(store: Store, settings: Settings) -> None:
    client = a_door(store, settings)
    serve(store)
    job_id = ended_job(client, store)
    assert job_id not in client.get("/metrics/fleet").text


def test_what_another_program_wrote_in_their_place_is_left_out(store: Store, settings: Settings) -> None:
    client = a_door(store, settings)
    serve(store)
    ended_job(client, store)
    buckets = [field.decode() for field in store.client.hkeys(keys.exemplars())]
    hostile = ["", "x", 'a"\n# EOF 5 6', "id 1e9 5", f"{'i' * 65} 5 5", "id -5 5"]
    for bucket, value in zip(buckets, hostile * len(buckets), strict=False):
        store.client.hset(keys.exemplars(), bucket, value)
    assert not any(exemplars(client).values())


def test_a_spoiled_key_costs_the_exemplars_and_not_the_page(store: Store, settings: Settings) -> None:
    client = a_door(store, settings)
    serve(store)
    ended_job(client, store)
    store.client.set(keys.exemplars(), "not a hash")
    page = client.get("/metrics/fleet", headers=ACCEPT)
    assert page.status_code == 200
    assert re.search(r"^penstock_jobs_total\{.*succeeded.*\} 1.0$", page.text, re.MULTILINE)
    # The next script puts the value aside.
    ended_job(client, store)
    assert store.client.type(keys.exemplars()) == b"hash"
    store.client.delete(f"penstock:spoiled:{keys.exemplars()}")

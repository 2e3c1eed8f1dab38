"""Tests that a hundred requests a second without a key cost the store and the door as much as one."""

import threading
from pathlib import Path
from typing import Any

import pytest
from apiflask import APIFlask

from shared.metrics.spec import BUCKETS_MS
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.connection import DOOR, open_client
from shared.store.store import Store
from tests.support.builders import a_job, admitted
from tests.support.door import a_door, door_store, refused, serve
from tests.support.lossy import LossyProxy
from tests.support.processes import wait_for

REQUESTS = 100


@pytest.fixture
def busy_store(store: Store) -> Store:
    """A store with a live worker and as many fields of statistics as 50 tenants with four models leave."""
    serve(store)
    admitted(store, a_job())
    bounds = [*(str(bound) for bound in BUCKETS_MS), "inf", "sum"]
    series = [f"h|queue_wait|tenant{tenant}|m{model}" for tenant in range(200) for model in range(4)]
    store.client.hset(keys.stats(), mapping={f"{one}|{bound}": 1 for one in series for bound in bounds})
    assert store.client.hlen(keys.stats()) > 15_000
    return store


def scripts_of(store: Store) -> int:
    """Return how many scripts the store has run."""
    commands: Any = store.client.info("commandstats")
    return int(commands.get("cmdstat_evalsha", {"calls": 0})["calls"])


def sent_to(store: Store, name: str) -> int:
    """Return how many bytes the store has sent to the connections of that name."""
    return sum(int(each["tot-net-out"]) for each in store.client.client_list() if each["name"] == name)


def test_a_hundred_readiness_checks_at_once_cost_the_store_as_much_as_one(
    busy_store: Store, store_url: str, settings: Settings
) -> None:
    # Doors of other tests may still read the same store for some seconds, with connections of other names.
    client = a_door(Store(open_client(store_url, name="penstock-ready", timeouts=DOOR)), settings)
    assert client.get("/health/ready").status_code == 200
    scripts, sent = scripts_of(busy_store), sent_to(busy_store, "penstock-ready")
    assert sent > 0
    threads = [threading.Thread(target=client.application.test_client().get, args=("/health/ready",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    statuses = {client.get("/health/ready").status_code for _ in range(REQUESTS)}
    assert statuses == {200}
    # One script a second; a slow machine takes some seconds for the requests.
    assert scripts_of(busy_store) - scripts < REQUESTS / 4
    assert sent_to(busy_store, "penstock-ready") - sent < 100_000


def test_the_description_of_the_routes_is_made_once_a_process(store: Store, settings: Settings) -> None:
    client = a_door(store, settings)
    assert isinstance(client.application, APIFlask)
    made: list[object] = []
    complete = client.application.spec_callback
    client.application.spec_processor(lambda spec: made.append(spec) or complete(spec))
    assert len({client.get("/openapi.json").data for _ in range(3)}) == 1
    assert len(made) == 1


@pytest.mark.parametrize("path", ["/health", "/metrics", "/docs", "/openapi.json"])
def test_other_requests_without_a_key_cost_the_store_nothing(busy_store: Store, settings: Settings, path: str) -> None:
    client = a_door(busy_store, settings, auth="required")

    def scripts_of_a_request() -> int:
        scripts = scripts_of(busy_store)
        assert client.get(path).status_code == 200
        return scripts_of(busy_store) - scripts

    # The door also runs scripts by itself now and then, but not during each of several requests.
    assert any(scripts_of_a_request() == 0 for _ in range(10))


def test_the_fleet_metrics_are_read_and_rendered_once_a_second(busy_store: Store, settings: Settings) -> None:
    client = a_door(busy_store, settings)
    first = client.get("/metrics/fleet")
    assert first.text.count("penstock_queue_wait_seconds_bucket") > 14_000
    scripts = scripts_of(busy_store)
    pages = {client.get("/metrics/fleet").data for _ in range(REQUESTS)}
    assert len(pages) < REQUESTS / 4
    assert scripts_of(busy_store) - scripts < REQUESTS / 4


def test_readiness_checks_in_an_outage_are_refused_and_the_door_is_ready_within_a_second_of_its_end(
    store: Store, store_url: str, settings: Settings, tmp_path: Path
) -> None:
    proxy = LossyProxy(tmp_path, store_url)
    client = a_door(door_store(proxy.url), settings)
    for _ in range(REQUESTS):
        refused(client.get("/health/ready"), "store_unavailable")
    serve(store)
    with proxy:
        wait_for(lambda: client.get("/health/ready").status_code == 200, "the door to be ready")

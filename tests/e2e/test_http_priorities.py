"""`priority` over HTTP: the order of a tenant's own jobs, and which values are refused."""

import pytest
from flask.testing import FlaskClient

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import a_door, admitted_job, fault, job_of, serve, submit


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


def test_a_job_with_a_higher_priority_is_put_before_its_tenants_other_jobs(client: FlaskClient) -> None:
    jobs = {priority: admitted_job(submit(client, priority=priority)) for priority in (-1, 0, 1)}
    places = {job["priority"]: job_of(client.get(job["urls"]["self"]))["queue"]["position"] for job in jobs.values()}
    assert places == {1: 1, 0: 2, -1: 3}
    assert fault(submit(client, priority=2), 422, "invalid_value", "priority").startswith("priority=2:")


def test_an_openai_route_refuses_another_priority_by_its_name(client: FlaskClient) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "priority": "1"}
    error = client.post("/v1/chat/completions", json=body).get_json()["error"]
    assert (error["param"], error["code"]) == ("priority", "invalid_value")
    assert error["message"].startswith("priority='1'")

"""Webhooks of served doors: a real receiver is told of the ends of jobs, responses and batches."""

from collections.abc import Iterator

import httpx
import pytest

from shared.accounts.webhook_secrets import WebhookSecrets
from tests.support.processes import wait_for
from tests.support.receiver import SECRET, Receiver
from tests.support.served import Address, Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="no proxy is between the door and the receivers of webhooks")


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("webhooks"), PENSTOCK_WEBHOOK_HOSTS="localhost") as served:
        WebhookSecrets(served.stage.client).change("default", SECRET)
        yield served


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def invalid(answer: httpx.Response) -> str:
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "callback_url")
    return str(error["message"])


def test_the_end_of_a_job_is_told_once_with_the_job_and_without_its_prompt(served: Address, receiver: Receiver) -> None:
    job = served.submit(prompt="a secret prompt", callback_url=receiver.url, metadata={"order": "7"}).json()
    told = receiver.wait_for()[0]
    assert told.path == "/hook?from=penstock"
    assert told.is_signed_with(SECRET)
    event, ended = told.event, served.http.get(f"/v1/jobs/{job['id']}").json()
    assert (event["type"], told.id, event["id"]) == ("job.ended", f"msg_{job['id']}", f"msg_{job['id']}")
    assert event["data"]["metadata"] == {"order": "7"}
    assert event["data"]["text"] == ended["text"]
    assert b"a secret prompt" not in told.body
    wait_for(lambda: not served.stage.client.keys("penstock:webhook:*"), "the webhook to be removed")
    assert len(receiver.received) == 1

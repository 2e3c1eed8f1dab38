"""Webhooks of served doors: a real receiver is told of the ends of jobs, responses and batches."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from shared.accounts.webhook_secrets import WebhookSecrets
from shared.store import keys
from tests.support.ports import free_port
from tests.support.processes import in_time, wait_for
from tests.support.program import program
from tests.support.receiver import SECRET, Received, Receiver, make_certificate
from tests.support.served import Address, Served, sim_served
from web.webhooks.post import ANSWER_S

pytestmark = pytest.mark.ways("direct", reason="no proxy is between the door and the receivers of webhooks")

#: The host of all receivers, which the operator lists; `localhost`, its name, is not listed.
HOST = "127.0.0.1"
TENANTS = ("default", "loud", "quiet")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Served]:
    environ = {"PENSTOCK_WEBHOOK_HOSTS": HOST, "SSL_CERT_FILE": str(certificate)}
    with sim_served(tmp_path_factory.mktemp("webhooks"), **environ) as served:
        for tenant in TENANTS:
            WebhookSecrets(served.stage.client).change(tenant, SECRET)
        yield served


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(host=HOST) as receiver:
        yield receiver


def submit(served: Address, receiver: Receiver | str, tenant: str = "default", **body: Any) -> str:
    """Submit a small job whose end is told; return its id."""
    url = receiver if isinstance(receiver, str) else receiver.url
    answer = served.submit(tenant, max_tokens=2, callback_url=url, **body)
    assert answer.status_code in {200, 202}, answer.text
    return str(answer.json()["id"])


def webhook_of(served: Address, job_id: str, tenant: str = "default") -> dict[str, Any]:
    found: dict[str, Any] = served.http.get(f"/v1/jobs/{job_id}", headers={"X-Tenant": tenant}).json()
    return dict(found["webhook"])


def wait_until_told(served: Address, *ids: str) -> None:
    """Wait until nothing is stored any more of the webhooks of these jobs and batches."""
    names = [keys.webhook(subject_id) for subject_id in ids]
    wait_for(lambda: not served.stage.client.exists(*names), f"{len(ids)} webhooks to be told", timeout_s=90)


def test_the_end_of_a_job_is_told_once_with_the_job_and_without_its_prompt(served: Address, receiver: Receiver) -> None:
    job_id = submit(served, receiver, prompt="a secret prompt", metadata={"order": "7"})
    told = receiver.wait_for()[0]
    assert told.path == "/hook?from=penstock"
    assert told.is_signed_with(SECRET)
    event, ended = told.event, served.http.get(f"/v1/jobs/{job_id}").json()
    assert (event["type"], told.id, event["id"]) == ("job.ended", f"msg_{job_id}", f"msg_{job_id}")
    assert {name: event["data"][name] for name in ("text", "usage", "metadata", "status")} == {
        name: ended[name] for name in ("text", "usage", "metadata", "status")
    }
    assert b"a secret prompt" not in told.body
    wait_until_told(served, job_id)
    expected = {"url": receiver.url, "status": "delivered", "tries": 1, "last_result": "delivered"}
    assert webhook_of(served, job_id) == expected
    assert len(receiver.received) == 1


def test_a_receiver_with_tls_is_told(served: Address, certificate: Path) -> None:
    with Receiver(certificate=certificate, host=HOST) as receiver:
        job_id = submit(served, receiver)
        assert receiver.wait_for()[0].event["data"]["id"] == job_id


def unwrapped(client: OpenAI, told: Received) -> Any:
    return client.webhooks.unwrap(told.body, told.headers, secret=SECRET)


def test_the_openai_package_reads_the_event_of_a_background_response(
    client: OpenAI, served: Address, receiver: Receiver
) -> None:
    job = client.responses.create(
        model="sim", input="hi", max_output_tokens=3, background=True, extra_body={"callback_url": receiver.url}
    )
    told = receiver.wait_for()[0]
    event = unwrapped(client, told)
    assert (type(event).__name__, event.data.id) == ("ResponseIncompleteWebhookEvent", job.id)
    assert told.event["data"]["output"][0]["content"][0]["text"]
    assert job.model_extra["webhook"]["status"] == "waiting"
    wait_until_told(served, job.id.removeprefix("resp_"))
    assert client.responses.retrieve(job.id).model_extra["webhook"]["status"] == "delivered"


def test_the_openai_package_reads_the_event_of_a_batch(client: OpenAI, served: Address, receiver: Receiver) -> None:
    body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = client.files.create(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_body={"callback_url": receiver.url},
    )
    told = receiver.wait_for()[0]
    event = unwrapped(client, told)
    assert (type(event).__name__, event.data.id) == ("BatchCompletedWebhookEvent", batch.id)
    assert told.event["data"]["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    wait_until_told(served, batch.id)
    assert client.batches.retrieve(batch.id).model_extra["webhook"]["status"] == "delivered"


def test_a_response_that_is_not_in_the_background_takes_no_url(client: OpenAI, receiver: Receiver) -> None:
    with pytest.raises(openai.BadRequestError, match="background") as refused:
        client.responses.create(model="sim", input="hi", extra_body={"callback_url": receiver.url})
    assert refused.value.param == "callback_url"


@pytest.mark.parametrize(
    ("tenant", "url", "told"),
    [
        ("default", "http://example.com/x", "only https is allowed"),
        ("secretless", f"http://{HOST}:1/x", "needs a secret for signatures"),
    ],
)
def test_a_quote_refuses_the_url_that_a_submit_would_refuse(served: Address, tenant: str, url: str, told: str) -> None:
    body = {"prompt": "once upon", "max_tokens": 2, "callback_url": url}
    quoted, submitted = (
        served.http.post(path, json=body, headers={"X-Tenant": tenant}) for path in ("/v1/quote", "/v1/jobs")
    )
    assert (quoted.status_code, quoted.json()["error"]) == (submitted.status_code, submitted.json()["error"])
    assert quoted.status_code == 422
    assert told in quoted.json()["error"]["message"]


def test_a_quote_of_a_job_whose_end_would_be_told_tells_nothing(served: Address, receiver: Receiver) -> None:
    body = {"prompt": "once upon", "max_tokens": 2, "callback_url": receiver.url}
    answer = served.http.post("/v1/quote", json=body)
    assert (answer.status_code, answer.json()["verdict"]) == (200, "admitted")
    assert receiver.received == []


def test_the_command_submit_asks_for_a_webhook(served: Address, receiver: Receiver, tmp_path: Path) -> None:
    penstock = program(tmp_path, PENSTOCK_URL=served.url)
    ended = penstock("submit", "once upon", "--max-tokens", "2", "--callback-url", receiver.url, "--json")
    job = json.loads(ended.stdout)
    assert receiver.wait_for()[0].event["data"]["id"] == job["id"]
    refused = penstock("submit", "once upon", "--callback-url", "no url")
    assert refused.returncode == 1
    assert "callback_url contains a space" in refused.stderr


def test_a_canceled_and_an_expired_job_are_told_too(served: Address, receiver: Receiver) -> None:
    canceled = served.submit(max_tokens=4_000, callback_url=receiver.url).json()["id"]
    served.http.delete(f"/v1/jobs/{canceled}")
    expired = served.submit(max_tokens=4_000, deadline_ms=300, callback_url=receiver.url).json()["id"]
    told = {got.event["data"]["id"]: got.event["data"]["status"] for got in receiver.wait_for(2)}
    assert told == {canceled: "canceled", expired: "expired"}


def test_a_receiver_that_is_away_is_told_when_it_has_come_back(served: Address) -> None:
    port = free_port()
    ids = {submit(served, f"http://{HOST}:{port}/hook") for _ in range(3)}
    wait_for(lambda: all(webhook_of(served, job_id)["tries"] for job_id in ids), "a try of each", timeout_s=60)
    assert {webhook_of(served, job_id)["last_result"] for job_id in ids} == {"unreachable"}
    # Webhooks of other tests may be pending too.
    wait_for(
        lambda: served.figure("penstock_webhooks_pending") == served.stage.client.zcard(keys.webhooks()) >= len(ids),
        "the number of pending webhooks",
        timeout_s=60,
    )
    with Receiver(port, host=HOST) as receiver:
        receiver.statuses = [500]
        wait_until_told(served, *ids)
        assert {got.id for got in receiver.received} == {f"msg_{job_id}" for job_id in ids}
        assert all(got.is_signed_with(SECRET) for got in receiver.received)
        assert len(receiver.received) == 4


def test_a_slow_receiver_delays_no_other_tenants_webhooks(served: Address) -> None:
    """A try of the slow receiver takes ANSWER_S, and it has more webhooks than the door has connections for it."""

    def attempt() -> Iterator[tuple[float, float]]:
        with Receiver(host=HOST) as slow, Receiver(host=HOST) as receiver:
            slow.may_answer.clear()
            ids = [submit(served, slow, "loud") for _ in range(12)]
            slow.wait_for(2)
            began_s = time.monotonic()
            job_id = submit(served, receiver, "quiet")
            assert receiver.wait_for()[0].event["data"]["id"] == job_id
            took_s = time.monotonic() - began_s
            slow.may_answer.set()
            wait_until_told(served, *ids)
            assert {got.id for got in slow.received} == {f"msg_{loud_id}" for loud_id in ids}
        yield took_s, ANSWER_S / 2

    in_time(attempt)


def test_a_name_of_a_private_address_is_refused_at_each_try(served: Address) -> None:
    job_id = submit(served, "https://localhost/hook")
    wait_for(lambda: webhook_of(served, job_id)["tries"] >= 2, "two tries", timeout_s=90)
    assert webhook_of(served, job_id)["last_result"] == "refused_address"
    assert served.figure('penstock_webhooks_total{result="refused_address"}') >= 2


def test_no_log_contains_the_secret_or_the_path_of_a_url(served: Address) -> None:
    job_id = submit(served, f"http://{HOST}:{free_port()}/token-in-the-path?key=token")
    wait_for(lambda: webhook_of(served, job_id)["tries"], "a try", timeout_s=60)
    lines = wait_for(
        lambda: [line for line in served.process.log_lines("webhook.failed") if job_id in line], "a log line of the try"
    )
    assert json.loads(lines[0])["reason"] == "unreachable"
    everything = served.process.log.read_text()
    assert "token" not in everything.replace("return_ticket", "")
    assert SECRET.removeprefix("whsec_") not in everything

"""Tests the answers to requests that name a URL for a webhook, and how an operator allows them."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from shared.accounts.webhook_secrets import WebhookSecrets
from shared.store import keys
from shared.store.batches.files import Files
from shared.store.store import Store
from shared.store.webhooks import Webhooks
from tests.support.builders import a_job, admitted, contents, heartbeat
from tests.support.door import a_door, admitted_job, fault, post_response, serve, submit
from tests.support.gate import served as served_gate
from tests.support.gate import submit_frame
from tests.support.ports import free_port
from tests.support.processes import ROOT, Process, wait_for
from tests.support.program import Program, program
from tests.support.receiver import OTHER_SECRET, SECRET
from tests.support.served import sim_served
from web.jobs.admission import MAX_PENDING

URL = "https://example.com/hook"
INVALID = [
    "http://example.com/",
    "https://example.com:8443/",
    "https://user@example.com/",
    "https://example.com/#x",
    "https://10.0.0.1/",
    "https://example.com/" + "x" * 2_048,
    "no url",
    "",
]


@pytest.fixture
def client(store: Store, settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings, webhook_hosts="hooks.internal")


@pytest.fixture
def secret(store: Store) -> None:
    WebhookSecrets(store.client).change("default", SECRET)


@pytest.mark.parametrize("url", INVALID)
def test_a_url_that_is_not_allowed_is_an_error_of_its_field_and_leaves_nothing(client, store, secret, url):
    before = contents(store)
    assert "callback_url" in fault(submit(client, callback_url=url), 422, "invalid_value", "callback_url")
    background = post_response(client, callback_url=url, background=True)
    fault(background, 400, "invalid_value", "callback_url")
    batch = {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "1h", "callback_url": url}
    fault(client.post("/v1/batches", json=batch), 400, "invalid_value", "callback_url")
    assert contents(store) == before


@pytest.mark.parametrize("value", [7, ["https://example.com/"], {"url": URL}, True])
def test_a_value_that_is_no_text_is_an_error(client, secret, value):
    fault(submit(client, callback_url=value), 422, "invalid_value", "callback_url")


def test_a_listed_host_may_use_http_and_any_port(client, secret):
    admitted_job(submit(client, callback_url="http://hooks.internal:8080/x"))
    fault(submit(client, callback_url="http://hooks.internal.example/"), 422, "invalid_value", "callback_url")


def test_without_a_secret_the_error_says_what_an_operator_has_to_do(client):
    message = fault(submit(client, callback_url=URL), 422, "invalid_value", "callback_url")
    assert "penstock tenants set default --webhook-secret-file FILE" in message


def test_a_tenant_with_too_many_webhooks_that_are_not_told_is_refused_more(client, store, secret):
    # The records of all but the first have expired; a door drops such entries when their turn comes.
    store.cancel(admitted(store, a_job("default", callback_url=URL)))
    names = {f"j{number}": 0 for number in range(MAX_PENDING - 1)}
    store.client.zadd(keys.webhook_due("default"), names)
    full = submit(client, callback_url=URL)
    fault(full, 429, "webhooks_full", "callback_url")
    assert full.get_json()["limits"] == {"limit": "tenant_webhooks", "value": MAX_PENDING, "max": MAX_PENDING}
    admitted_job(submit(client))
    store.client.zrem(keys.webhook_due("default"), "j1")
    admitted_job(submit(client, callback_url=URL))


def test_a_repeated_request_with_another_url_is_another_request(client, secret):
    headers = {"Idempotency-Key": "once"}
    first = admitted_job(submit(client, callback_url=URL, headers=headers))
    assert admitted_job(submit(client, callback_url=URL, headers=headers))["id"] == first["id"]
    fault(submit(client, callback_url=f"{URL}2", headers=headers), 422, "idempotency_mismatch", "Idempotency-Key")


def test_a_repetition_of_an_admitted_request_finds_its_job_whatever_has_changed_since(client, store, secret):
    idem, proxy = {"Idempotency-Key": "once"}, {"X-Request-Id": "r1"}
    admitted_ids = {
        name: admitted_job(submit(client, callback_url=URL, headers=headers))["id"]
        for name, headers in (("idem", idem), ("proxy", proxy))
    }
    WebhookSecrets(store.client).change("default", "")
    for name, headers in (("idem", idem), ("proxy", proxy)):
        assert admitted_job(submit(client, callback_url=URL, headers=headers))["id"] == admitted_ids[name]
    fault(submit(client, callback_url=URL, headers={"Idempotency-Key": "two"}), 422, "invalid_value", "callback_url")
    # The key belongs to its tenant.
    other = {**idem, "X-Tenant": "other"}
    fault(submit(client, callback_url=URL, headers=other), 422, "invalid_value", "callback_url")
    WebhookSecrets(store.client).change("default", SECRET)
    store.client.zadd(keys.webhook_due("default"), {f"j{number}": 0 for number in range(MAX_PENDING)})
    assert admitted_job(submit(client, callback_url=URL, headers=idem))["id"] == admitted_ids["idem"]
    fault(submit(client, callback_url=URL), 429, "webhooks_full", "callback_url")


def test_a_repetition_of_a_request_for_a_batch_finds_it_whatever_has_changed_since(client, store, secret):
    Files(store.client).add_part("f", "default", 0, b"{}\n")
    Files(store.client).close("f", "default", purpose="batch", filename="lines", ttl_s=86_400)
    body = {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "1h", "callback_url": URL}
    first = client.post("/v1/batches", json=body, headers={"Idempotency-Key": "once"})
    assert first.status_code == 200, first.text
    WebhookSecrets(store.client).change("default", "")
    again = client.post("/v1/batches", json=body, headers={"Idempotency-Key": "once"})
    assert (again.status_code, again.get_json()["id"]) == (200, first.get_json()["id"])
    fault(client.post("/v1/batches", json=body), 400, "invalid_value", "callback_url")


def test_the_gate_takes_the_field_too(store, settings):
    serve(store)
    WebhookSecrets(store.client).change("blue", SECRET)
    with served_gate(store, settings) as gate:
        job_id = gate.client.ask(submit_frame(callback_url=URL))["id"]
        wrong = gate.client.ask(submit_frame("a2", callback_url="http://example.com/"))
        assert (wrong["status"], wrong["error"]["param"]) == ("error", "callback_url")
        store.cancel(job_id)
        assert Webhooks(store.client).count_of("blue") == 1
        gate.client.read()


# Operators' actions.


@pytest.fixture
def penstock(tmp_path: Path, store_url: str, store: Store) -> Program:
    return program(tmp_path, REDIS_URL=store_url)


def test_a_secret_is_set_replaced_and_removed_and_never_shown(penstock, store, tmp_path):
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n")
    option = ("--webhook-secret-file", str(file))
    shown = [penstock("tenants", "set", "blue", *option), penstock("tenants", "add", "red", "--weight", "2", *option)]
    file.write_text(f"{OTHER_SECRET}\n{SECRET}\n")
    shown += [penstock("tenants", "set", "blue", *option, "--json"), penstock("tenants", "ls")]
    assert len(WebhookSecrets(store.client).get("blue")) == 2
    shown += [penstock("tenants", "ls", "--json"), penstock("audit"), penstock("doctor")]
    assert [run.returncode for run in shown] == [0] * 7
    listed = {entry["tenant"]: entry["has_webhook_secret"] for entry in json.loads(shown[4].stdout)}
    assert listed == {"blue": True, "red": True}
    assert "tenant.webhook_secret" in shown[5].stdout
    everything = "".join(run.stdout + run.stderr for run in shown)
    assert not [part for part in (SECRET, OTHER_SECRET) if part.removeprefix("whsec_") in everything]
    assert penstock("tenants", "set", "blue", "--webhook-secret-file", "default").returncode == 0
    assert penstock("tenants", "rm", "red").returncode == 0
    assert WebhookSecrets(store.client).owners() == frozenset()


@pytest.mark.parametrize("content", ["", "whsec_c2hvcnQ=", "not a secret", "whsec_bücher"])
def test_a_file_without_a_secret_changes_nothing_and_is_not_quoted(penstock, store, tmp_path, content):
    file = tmp_path / "secrets"
    file.write_text(content)
    failed = penstock("tenants", "set", "blue", "--weight", "2", "--webhook-secret-file", str(file))
    assert failed.returncode == 2
    assert "webhook_secret" in failed.stderr
    assert not content or content.removeprefix("whsec_") not in failed.stderr
    assert store.client.exists(keys.tenant("blue"), keys.webhook_secrets()) == 0
    missing = penstock("tenants", "set", "blue", "--webhook-secret-file", str(tmp_path / "nowhere"))
    assert (missing.returncode, "nowhere" in missing.stderr) == (2, True)
    mistaken = penstock("tenants", "set", "blue", "--webhook-secret-file", SECRET)
    assert (mistaken.returncode, SECRET.removeprefix("whsec_") in mistaken.stderr) == (2, False)


def test_doctor_names_the_tenants_whose_webhooks_are_not_told(penstock, store):
    heartbeat(store)
    for _ in range(2):
        store.cancel(admitted(store, a_job(callback_url=URL)))
    notes = json.loads(penstock("doctor", "--json").stdout)["notes"]
    assert [note for note in notes if re.match(r"2 webhooks of tenant 'blue' are not told yet", note)]


@pytest.mark.ways("direct", reason="the page's command names the door itself")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
def test_the_example_of_the_page_works_as_printed(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "webhooks.md").read_text(encoding="utf-8")
    (tmp_path / "receiver.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    commands = re.findall(r"^\$ (.*)", page, re.MULTILINE)
    curl = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[0].partition("\n")[2]
    port = free_port()
    with sim_served(tmp_path_factory.mktemp("page"), PENSTOCK_WEBHOOK_HOSTS="localhost") as door:
        operator = program(tmp_path, REDIS_URL=door.stage.url)
        for command in commands:
            shell = command.replace("penstock ", " ".join(operator.command()) + " ")
            subprocess.run(["bash", "-c", shell], cwd=tmp_path, env=operator.environ, check=True, capture_output=True)
        arguments = [sys.executable, str(tmp_path / "receiver.py"), str(tmp_path / "webhook.secret"), str(port)]
        receiver = Process(arguments, dict(operator.environ), tmp_path / "receiver.log")
        try:
            script = curl.replace("http://localhost:8000", door.url).replace("localhost:9000", f"localhost:{port}")
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
            job_id = json.loads(done.stdout)["id"]
            wait_for(lambda: receiver.log_lines(f"job.ended {job_id} succeeded"), "the receiver's line", timeout_s=60)
            forged = door.http.post(f"http://127.0.0.1:{port}/", headers=_FORGED, content=b"{}")
            assert forged.status_code == 401
        finally:
            receiver.end()
        door.stage.assert_sound()


_FORGED = {"webhook-id": "msg_1", "webhook-timestamp": "1", "webhook-signature": "v1,forged"}

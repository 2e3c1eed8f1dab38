"""Tests that the open requests of one tenant in a door process are bounded, and other tenants are served beside it."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from shared.jobs.states import JobState
from tests.support.builders import view_of
from tests.support.processes import wait_for
from tests.support.served import Address, Served, sim_served
from web.openapi import response_models

pytestmark = pytest.mark.ways("direct", reason="the bounds are those of one process, behind a proxy or not")

REQUESTS, BODY_BYTES, PER_ADDRESS = 3, 10_000, 40
PROXY = "127.0.0.9"
#: So many that each may have its share of one client's requests.
TENANTS = [f"p{index}" for index in range(-(-PER_ADDRESS // REQUESTS))]


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environ = {
        "PENSTOCK_WEB_WORKERS": "1",
        "PENSTOCK_MAX_TENANT_REQUESTS": str(REQUESTS),
        "PENSTOCK_MAX_BODY_BYTES": str(BODY_BYTES),
        "PENSTOCK_MAX_OPEN_BODY_BYTES": str(3 * BODY_BYTES),
        "PENSTOCK_MAX_TENANT_BODY_BYTES": str(2 * BODY_BYTES),
        "PENSTOCK_MAX_ADDRESS_CONNECTIONS": str(PER_ADDRESS),
        "PENSTOCK_TRUSTED_PROXIES": PROXY,
        "PENSTOCK_SIM_DECODE_TPS": "20",
    }
    with sim_served(tmp_path_factory.mktemp("open"), **environ) as served:
        yield served


def code_of(answer: httpx.Response) -> str:
    """Return the code of an error that asks the client to retry."""
    assert answer.headers["retry-after-ms"] == "1000"
    return str(response_models.Error.model_validate(answer.json()).error.code)


def list_jobs(served: Address, tenant: str) -> httpx.Response:
    return served.http.get("/v1/jobs", headers={"X-Tenant": tenant})


@pytest.mark.parametrize("form", ["stream", "wait"])
def test_a_tenant_with_too_many_open_requests_gets_429_until_one_ends(served: Address, form: str) -> None:
    tenant = f"greedy-{form}"
    job = served.submit(tenant, max_tokens=2_000).json()
    path = job["urls"]["events"] if form == "stream" else f"{job['urls']['self']}?wait_ms=50000"
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Tenant: {tenant}\r\n\r\n".encode()

    def open_another() -> bool:
        # The request that looks is open itself for a moment, so that one of the others may be refused in its place.
        stack.enter_context(socket.create_connection(("127.0.0.1", served.port))).sendall(request)
        return list_jobs(served, tenant).status_code == 429

    with ExitStack() as stack:
        wait_for(open_another, "the open requests to be counted")
        assert code_of(list_jobs(served, tenant)) == "tenant_requests_full"
        assert list_jobs(served, "modest").status_code == 200
        assert 'penstock_http_turned_away_total{bound="tenant_requests_full"' in served.http.get("/metrics").text
    # They end soon after their clients have disconnected, although the job continues.
    wait_for(lambda: list_jobs(served, tenant).status_code == 200, "the requests to end")
    assert view_of(served.stage.store, job["id"]).state in {JobState.QUEUED, JobState.RUNNING}
    remove(served, tenant, job["urls"]["self"])


def test_bodies_that_do_not_arrive_are_bounded_for_a_tenant_and_in_all(served: Address) -> None:
    def half_a_body(tenant: str) -> socket.socket:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=10))
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Tenant: {tenant}\r\nContent-Type: application/json\r\n"
        connection.sendall(f'{head}Content-Length: {BODY_BYTES}\r\n\r\n{{"prompt": "'.encode())
        return connection

    def open_another(tenant: str, asked: str, status: int) -> bool:
        # The body of the request that looks counts for a moment, so that one of the others may be refused in its place.
        held.append(half_a_body(tenant))
        return served.submit(asked).status_code == status

    held: list[socket.socket] = []
    with ExitStack() as stack:
        wait_for(lambda: open_another("bulky", "bulky", 429), "the bodies to be counted")
        assert code_of(served.submit("bulky")) == "tenant_bodies_full"
        assert served.submit("modest", max_tokens=1).status_code == 202
        wait_for(lambda: open_another("second", "modest", 503), "the third body to be counted")
        assert code_of(served.submit("modest")) == "bodies_full"
        assert list_jobs(served, "modest").status_code == 200
        for connection in held:
            connection.close()
        wait_for(lambda: served.submit("modest", max_tokens=1).status_code == 202, "room for a body")


def test_a_conversation_that_is_continued_counts_as_a_body_while_it_is_offered(served: Address) -> None:
    def respond(**fields: str) -> httpx.Response:
        body = {"model": "sim", "max_output_tokens": 1} | fields
        return served.http.post("/v1/responses", json=body, headers={"X-Tenant": "talker"})

    first = respond(input="x" * 8_000)
    assert first.status_code == 200, first.text
    previous = first.json()["id"]
    head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Tenant: talker\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        # The tenant's remaining bytes are enough for a short body, but not for the conversation.
        for length in (BODY_BYTES, BODY_BYTES // 2):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=10))
            connection.sendall(f'{head}Content-Length: {length}\r\n\r\n{{"prompt": "'.encode())
        wait_for(
            lambda: respond(input="hi", previous_response_id=previous).status_code == 429, "the bodies to be counted"
        )
        assert code_of(respond(input="hi", previous_response_id=previous)) == "tenant_bodies_full"
        assert respond(input="hi").status_code == 200
    wait_for(lambda: respond(input="hi", previous_response_id=previous).status_code == 200, "room for the conversation")


def test_behind_a_proxy_the_requests_of_each_client_are_bounded(served: Address) -> None:
    def connect(client: str, tenant: str, path: str) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", served.port), timeout=10, source_address=(PROXY, 0))
        fields = f"Host: localhost\r\nX-Tenant: {tenant}\r\nX-Forwarded-For: 1.2.3.4, {client}\r\n"
        connection.sendall(f"GET {path} HTTP/1.1\r\n{fields}Connection: close\r\n\r\n".encode())
        return stack.enter_context(connection)

    def ask(client: str, path: str = "/v1/jobs") -> tuple[int, bytes]:
        connection = connect(client, "modest", path)
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
        return int(received.split()[1]), received

    jobs = {tenant: served.submit(tenant, max_tokens=2_000).json() for tenant in TENANTS}
    with ExitStack() as stack:
        for index in range(PER_ADDRESS):
            tenant = TENANTS[index % len(TENANTS)]
            stream = connect("198.51.100.7", tenant, jobs[tenant]["urls"]["events"])
            assert b"HTTP/1.1 200" in stream.recv(65_536)
        status, received = ask("198.51.100.7")
        assert (status, b"address_full" in received) == (429, True)
        assert ask("198.51.100.8")[0] == 200
        assert ask("198.51.100.7", "/health")[0] == 200
    wait_for(lambda: ask_alone(served) == 200, "the streams to end")
    for tenant, job in jobs.items():
        remove(served, tenant, job["urls"]["self"])


def remove(served: Address, tenant: str, path: str) -> None:
    """Cancel a job, as soon as the tenant has fewer open requests than its bound."""
    headers = {"X-Tenant": tenant}
    wait_for(lambda: served.http.delete(path, headers=headers).status_code == 200, "the job to be canceled")


def ask_alone(served: Address) -> int:
    """Return the status of a request of the client that had too many open requests."""
    headers = {"X-Forwarded-For": "198.51.100.7", "X-Tenant": "modest"}
    with httpx.Client(transport=httpx.HTTPTransport(local_address=PROXY)) as client:
        return client.get(f"{served.url}/v1/jobs", headers=headers).status_code

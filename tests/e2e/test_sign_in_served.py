"""Tests sign-in at real door processes: headers as they arrive on a connection, and an issuer that changes or hangs."""

import http.client
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared.accounts.api_keys import ApiKeys
from tests.support.issuer import AUDIENCE, Issuer
from tests.support.processes import in_time, wait_for
from tests.support.served import Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="the test is itself the proxy that names users")

ROLES = "ops=operator,team-red=tenant:red"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Served]:
    """A door with two processes, to which this machine is the proxy that names users."""
    with sim_served(
        tmp_path_factory.mktemp("door"),
        auth="required",
        PENSTOCK_SIGN_IN_PROXIES="127.0.0.1",
        PENSTOCK_SIGN_IN_ROLES=ROLES,
        PENSTOCK_OIDC_ISSUER=issuer.url,
        PENSTOCK_OIDC_AUDIENCE=AUDIENCE,
    ) as served:
        yield served


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Served]:
    """A door to which another machine is the proxy that names users."""
    with sim_served(
        tmp_path, auth="required", PENSTOCK_SIGN_IN_PROXIES="10.1.2.3", PENSTOCK_SIGN_IN_ROLES=ROLES
    ) as served:
        yield served


def status(port: int, *headers: tuple[str, str]) -> int:
    """Return the status of operators' figures for a request with these header lines, each as it is written here."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    client.putrequest("GET", "/metrics/fleet")
    for name, value in headers:
        client.putheader(name, value)
    client.endheaders()
    try:
        return client.getresponse().status
    finally:
        client.close()


def read_fleet(served: Served, token: str) -> httpx.Response:
    return served.http.get("/metrics/fleet", headers={"Authorization": f"Bearer {token}"})


def test_the_proxy_names_an_operator(served):
    assert status(served.port, ("X-Forwarded-User", "ada"), ("X-Forwarded-Groups", "ops")) == 200
    assert status(served.port, ("x-forwarded-user", "ada"), ("x-forwarded-groups", "staff")) == 403
    assert status(served.port, ("X-Forwarded-Groups", "ops")) == 401


def test_a_header_line_that_a_client_smuggles_past_the_proxy_gives_no_role(served):
    user, groups = ("X-Forwarded-User", "mallory"), ("X-Forwarded-Groups", "staff")
    assert status(served.port, user, groups, ("X-Forwarded-Groups", "ops")) == 400
    assert status(served.port, user, ("x-forwarded-groups", "ops"), groups) == 400
    assert status(served.port, user, ("X-Forwarded-User", "ada"), ("X-Forwarded-Groups", "ops")) == 400
    # A name with an underscore would be the same name to WSGI.
    assert status(served.port, user, groups, ("X_Forwarded_Groups", "ops")) == 403
    assert status(served.port, ("X_Forwarded_User", "ada"), ("X_Forwarded_Groups", "ops")) == 401
    assert status(served.port, user, ("X-Forwarded_Groups", "ops")) == 403


def test_a_peer_that_is_not_the_proxy_names_nobody(elsewhere):
    ada = ("X-Forwarded-User", "ada"), ("X-Forwarded-Groups", "ops")
    assert status(elsewhere.port, *ada) == 401
    assert status(elsewhere.port, *ada, ("X-Forwarded-For", "10.1.2.3"), ("X-Real-IP", "10.1.2.3")) == 401
    assert status(elsewhere.port, *ada, *ada) == 401


def test_a_key_that_the_issuer_rotates_to_is_accepted_and_the_old_one_is_forgotten(served, issuer):
    before = issuer.token(groups=["ops"])
    wait_for(lambda: read_fleet(served, before).status_code == 200, "the old key", timeout_s=60)
    issuer.rotate("next")
    after = issuer.token(groups=["ops"])
    # Each process has its own keys, so that several answers in a row show that both know the new one.
    wait_for(lambda: all(read_fleet(served, after).status_code == 200 for _ in range(6)), "the new key", timeout_s=60)
    wait_for(lambda: read_fleet(served, before).status_code in {401, 429}, "the end of the old key", timeout_s=60)


def test_a_token_with_hundreds_of_groups_is_accepted(served, issuer):
    groups = [f"{number:08}-0000-4000-8000-{number:012}" for number in range(250)]
    token = issuer.token(groups=[*groups, "ops"])
    assert len(token) > 8_190
    wait_for(lambda: read_fleet(served, token).status_code == 200, "the keys", timeout_s=60)
    longer = issuer.token(groups=groups * 2)
    assert read_fleet(served, longer).status_code in {401, 429, 431}


def test_an_issuer_that_hangs_delays_nobody_who_needs_it_not(served, issuer):
    key = ApiKeys(served.stage.store.client).create("blue").key
    issuer.answer = issuer.hang
    try:
        unknown = issuer.token(header={"kid": "unknown"})
        with httpx.Client(base_url=served.url, timeout=60) as other:

            def attempt():
                for _ in range(3):
                    began_s = time.monotonic()
                    assert other.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
                    yield time.monotonic() - began_s, 1.0
                    began_s = time.monotonic()
                    assert read_fleet(served, unknown).status_code in {401, 429, 503}
                    yield time.monotonic() - began_s, 8.0

            in_time(attempt)
    finally:
        issuer.answer = None

"""Tests who may use the door by signing in: through a proxy that names users, or with a token of an issuer."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from shared.accounts.admin_actions import list_actions
from shared.accounts.admin_keys import AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.clock import RealClock
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import load
from shared.store.store import Store
from tests.support.builders import heartbeat
from tests.support.console import press, streams, token_of
from tests.support.door import admitted_job, fault, submit
from tests.support.issuer import AUDIENCE, Issuer
from tests.support.processes import wait_for
from web.app import create_app
from web.console import streams as console_streams
from web.console.guard import TOKEN_HEADER
from web.request import caller as request_caller
from web.runtime.current import EXTENSION_NAME
from web.sign_in.users import LEEWAY_S

PROXY, STRANGER = "10.1.2.3", "10.9.9.9"
ROLES = "ops=operator,team-red=tenant:red,team-red=tenant:crimson,lab=group:research"
ADA = {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "staff,ops"}
RED = {"X-Forwarded-User": "rosa", "X-Forwarded-Groups": "team-red"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


class Door:
    """A door that requires keys, and takes users from one proxy and one issuer."""

    def __init__(self, store: Store, folder: Path, issuer: Issuer, **names: str) -> None:
        ours = {
            "PENSTOCK_STATE_DIR": str(folder),
            "PENSTOCK_SIGN_IN_PROXIES": f"{PROXY}/32",
            "PENSTOCK_SIGN_IN_ROLES": ROLES,
            "PENSTOCK_OIDC_ISSUER": issuer.url,
            "PENSTOCK_OIDC_AUDIENCE": AUDIENCE,
        }
        app = create_app(load(ours | names, dotenv=None), store, RealClock())
        self.proxy, self.direct = app.test_client(), app.test_client()
        self.proxy.environ_base["REMOTE_ADDR"] = PROXY
        self.direct.environ_base["REMOTE_ADDR"] = STRANGER


@pytest.fixture
def door(store: Store, tmp_path: Path, issuer: Issuer) -> Door:
    heartbeat(store)
    return Door(store, tmp_path, issuer)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def newest_action(client: redis.Redis) -> tuple[str, str]:
    newest = next(list_actions(client, limit=1))
    return newest.who, newest.what


# --- a proxy that names users --------------------------------------------------------------------


def test_an_operator_whom_the_proxy_names_uses_the_console_and_is_recorded(door, redis_client):
    assert door.proxy.get("/metrics/fleet", headers=ADA).status_code == 200
    assert press(door.proxy, "drain", ADA, worker="w1").status_code == 200
    assert newest_action(redis_client) == ("user ada", "worker.drain")


def test_the_address_of_a_user_is_preferred_to_the_name(door, redis_client):
    assert press(door.proxy, "drain", ADA | {"X-Forwarded-Email": "ada@example.org"}, worker="w1").status_code == 200
    assert newest_action(redis_client) == ("user ada@example.org", "worker.drain")


@pytest.mark.parametrize("path", ["/metrics/fleet", "/console", "/console/live", "/v1/usage?all=1", "/v1/jobs"])
def test_a_client_that_names_a_user_without_the_proxy_is_a_stranger(door, path):
    forwarded = ADA | {"X-Forwarded-For": PROXY}
    assert door.direct.get(path, headers=forwarded).status_code == 401
    assert door.proxy.get(path).status_code == 401


def test_a_user_without_a_role_may_do_nothing(door):
    nobody = {"X-Forwarded-User": "mallory", "X-Forwarded-Groups": "staff, OPS,ops2"}
    assert "user 'mallory'" in fault(door.proxy.get("/metrics/fleet", headers=nobody), 403, "operator_required")
    answer = door.proxy.get("/v1/jobs", headers=nobody)
    assert "no tenant and no group" in fault(answer, 403, "tenant_not_allowed", "X-Tenant")
    assert "operator" in fault(door.proxy.get("/console", headers=RED), 403, "operator_required")
    assert fault(door.proxy.get("/v1/jobs", headers=ADA), 403, "tenant_not_allowed", "X-Tenant")


@pytest.mark.parametrize("name", ["a,b", "a\tb", "x" * 191, "Zo\xeb"])
def test_a_name_that_is_not_one_readable_name_is_an_error_that_quotes_it(door, name):
    answer = door.proxy.get("/metrics/fleet", headers=ADA | {"X-Forwarded-User": name})
    fault(answer, 400, "invalid_request", "X-Forwarded-User")


def test_a_name_in_utf_8_is_recorded_as_it_is_written(door, redis_client):
    zoe = ADA | {"X-Forwarded-User": "Zoë".encode().decode("latin-1")}
    assert press(door.proxy, "drain", zoe, worker="w1").status_code == 200
    assert newest_action(redis_client) == ("user Zoë", "worker.drain")


def test_with_a_star_every_user_whom_the_proxy_names_has_the_role_and_no_user_of_a_token(store, tmp_path, issuer):
    door = Door(store, tmp_path, issuer, PENSTOCK_SIGN_IN_ROLES="*=operator")
    assert door.proxy.get("/metrics/fleet", headers={"X-Forwarded-User": "ada"}).status_code == 200
    assert door.proxy.get("/metrics/fleet").status_code == 401
    fault(door.direct.get("/metrics/fleet", headers=bearer(issuer.token(groups="*"))), 403, "operator_required")


def test_no_page_of_another_site_can_act_through_the_browser_of_a_user_who_has_signed_in(door, redis_client):
    page = door.proxy.get("/console", headers=ADA).text
    own = ADA | {TOKEN_HEADER: token_of(page)}
    for foreign in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        fault(
            door.proxy.post("/console/drain", data={"worker": "w1"}, headers=own | foreign), 403, "origin_not_allowed"
        )
        fault(submit(door.proxy, headers=RED | foreign), 403, "origin_not_allowed")
        fault(door.proxy.post("/v1/files", data={"purpose": "batch"}, headers=RED | foreign), 403, "origin_not_allowed")
    fault(door.proxy.post("/console/drain", data={"worker": "w1"}, headers=ADA), 403, "page_expired", TOKEN_HEADER)
    other = ADA | {"X-Forwarded-User": "eve", TOKEN_HEADER: token_of(page)}
    fault(door.proxy.post("/console/drain", data={"worker": "w1"}, headers=other), 403, "page_expired", TOKEN_HEADER)
    assert list(list_actions(redis_client, limit=1)) == []


# --- tenants and groups --------------------------------------------------------------------------


def test_a_user_acts_for_the_first_tenant_of_their_groups_or_the_one_they_name(door, store):
    assert admitted_job(submit(door.proxy, headers=RED))["tenant"] == "red"
    assert admitted_job(submit(door.proxy, headers=RED | {"X-Tenant": "crimson"}))["tenant"] == "crimson"
    fault(submit(door.proxy, headers=RED | {"X-Tenant": "blue"}), 403, "tenant_not_allowed", "X-Tenant")
    fault(submit(door.proxy, headers=RED | {"X-Tenant": "a b"}), 422, "invalid_value", "X-Tenant")


def test_a_user_of_a_group_names_one_of_its_tenants(door, redis_client):
    Groups(redis_client).set("research", GroupPolicy())
    Tenants(redis_client).set("physics", TenantPolicy(group="research"))
    lab = {"X-Forwarded-User": "lise", "X-Forwarded-Groups": "lab"}
    assert admitted_job(submit(door.proxy, headers=lab | {"X-Tenant": "physics"}))["tenant"] == "physics"
    for other in ("red", "none"):
        fault(submit(door.proxy, headers=lab | {"X-Tenant": other}), 403, "tenant_not_allowed", "X-Tenant")
    message = fault(submit(door.proxy, headers=lab), 403, "tenant_not_allowed", "X-Tenant")
    assert "name one of their tenants in X-Tenant" in message


def test_a_user_of_a_disabled_tenant_is_refused_and_a_tenant_without_a_policy_has_the_defaults(door, redis_client):
    Tenants(redis_client).set("crimson", TenantPolicy(disabled=True))
    fault(submit(door.proxy, headers=RED | {"X-Tenant": "crimson"}), 403, "tenant_disabled")
    assert submit(door.proxy, headers=RED).status_code == 202


def test_a_call_that_waits_ends_when_the_tenant_of_its_user_is_disabled(door, redis_client):
    job = admitted_job(submit(door.proxy, headers=RED))
    answers = []

    def wait() -> None:
        answers.append(door.proxy.get(f"/v1/jobs/{job['id']}?wait_ms=60000", headers=RED))

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: door.proxy.application.extensions[EXTENSION_NAME].key_watch._uses, "the wait", timeout_s=30)
    Tenants(redis_client).set("red", TenantPolicy(disabled=True))
    waiting.join(timeout=30)
    fault(answers[0], 403, "tenant_disabled")


def test_a_user_sees_the_jobs_of_their_tenant_only(door, redis_client):
    key = ApiKeys(redis_client).create("blue").key
    job = admitted_job(submit(door.direct, headers=bearer(key)))
    fault(door.proxy.get(f"/v1/jobs/{job['id']}", headers=RED), 404, "job_not_found")


# --- tokens --------------------------------------------------------------------------------------


def test_an_operator_with_a_token_uses_operators_routes_and_the_console(door, issuer, redis_client):
    token = bearer(issuer.token(groups=["ops"]))
    assert door.direct.get("/metrics/fleet", headers=token).status_code == 200
    assert press(door.direct, "drain", token, worker="w1").status_code == 200
    assert newest_action(redis_client) == ("user ada@example.org", "worker.drain")
    fault(door.direct.get("/v1/jobs", headers=token), 403, "tenant_not_allowed", "X-Tenant")


def test_a_token_opens_the_routes_of_its_tenant_beside_the_keys(door, issuer, redis_client):
    key = ApiKeys(redis_client).create("red").key
    admin_key, _ = AdminKeys(redis_client).create("ada")
    token = issuer.token(groups=["team-red"])
    assert admitted_job(submit(door.direct, headers=bearer(token)))["tenant"] == "red"
    assert door.direct.get("/v1/models", headers=bearer(token)).status_code == 200
    assert submit(door.direct, headers=bearer(key)).status_code == 202
    assert door.direct.get("/metrics/fleet", headers=bearer(admin_key)).status_code == 200
    fault(door.direct.get("/metrics/fleet", headers=bearer(token)), 403, "operator_required")


def test_a_token_that_is_not_valid_is_401_which_says_why_and_counts_as_a_failed_key(store, tmp_path, issuer):
    door = Door(store, tmp_path, issuer, PENSTOCK_FAILED_KEYS_PER_MINUTE="3")
    expired, foreign = issuer.token(groups=["ops"], lives_s=-100), issuer.token(groups=["ops"], aud="billing")
    for path in ("/metrics/fleet", "/v1/jobs"):
        answer = door.direct.get(path, headers=bearer(expired))
        assert "expired" in fault(answer, 401, "invalid_token")
        assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]
        assert expired not in answer.text
    assert "'billing', not 'penstock'" in fault(
        door.direct.get("/console", headers=bearer(foreign)), 401, "invalid_token"
    )
    fault(door.direct.get("/v1/jobs", headers=bearer(expired)), 429, "too_many_failed_keys")
    assert door.direct.get("/metrics/fleet", headers=bearer(issuer.token(groups=["ops"]))).status_code == 200


def test_a_token_counts_before_the_headers_of_the_proxy_and_these_before_basic_auth(door, issuer, redis_client):
    red = bearer(issuer.token(groups=["team-red"]))
    fault(door.proxy.get("/metrics/fleet", headers=ADA | red), 403, "operator_required")
    basic = {"Authorization": "Basic YWRhOg=="}
    assert door.proxy.get("/metrics/fleet", headers=ADA | basic).status_code == 200
    assert admitted_job(submit(door.proxy, headers=RED | {"Authorization": "Basic cm9zYTo="}))["tenant"] == "red"


def test_while_the_issuer_is_away_tokens_get_503_and_keys_work(store, tmp_path, redis_client):
    heartbeat(store)
    with Issuer() as issuer:
        door = Door(store, tmp_path, issuer)
        token = issuer.token(groups=["ops"])
        issuer.stop()
        answer = door.direct.get("/metrics/fleet", headers=bearer(token))
        assert issuer.url not in fault(answer, 503, "issuer_unavailable")
        assert (answer.headers["Retry-After"], answer.headers["x-should-retry"]) == ("10", "true")
        key = ApiKeys(redis_client).create("red").key
        assert submit(door.direct, headers=bearer(key)).status_code == 202
        assert door.proxy.get("/metrics/fleet", headers=ADA).status_code == 200


def test_the_streams_of_the_console_end_when_the_token_has_expired(door, issuer, monkeypatch):
    monkeypatch.setattr(console_streams, "_CHECK_KEY_S", 0.0)
    door.direct.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {issuer.token(groups=['ops'], lives_s=1_000)}"
    with streams(door.direct) as look:
        viewer = look()
        viewer.read_until("event: ")
        assert not viewer.has_ended_after(3)
        monkeypatch.setattr(request_caller, "time", SimpleNamespace(time=lambda: time.time() + 1_000 + LEEWAY_S))
        assert viewer.has_ended_after(40)


def test_without_an_issuer_a_token_is_an_unknown_key(store, tmp_path, issuer):
    door = Door(store, tmp_path, issuer, PENSTOCK_OIDC_ISSUER="")
    token = bearer(issuer.token(groups=["ops", "team-red"]))
    fault(door.direct.get("/v1/jobs", headers=token), 401, "invalid_api_key")
    fault(door.direct.get("/metrics/fleet", headers=token), 401, "admin_key_required")


def test_a_user_may_not_be_taken_for_an_admin_key(door, redis_client):
    AdminKeys(redis_client).create("ada")
    assert press(door.proxy, "drain", ADA, worker="w1").status_code == 200
    assert newest_action(redis_client)[0] == "user ada"

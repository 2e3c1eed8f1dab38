"""The changes of tenants on the console: validated as on the command line, recorded, and keys shown only once."""

import re

import pytest
import redis
import structlog
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.accounts.admin_actions import list_actions
from shared.accounts.admin_keys import AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.groups import Groups
from shared.accounts.key_record import digest_of
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.key_bounds import KeyBounds
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import heartbeat
from tests.support.console import ATTACK, press
from tests.support.door import a_door, fault, submit


def newest(client: redis.Redis) -> tuple[str, str, str]:
    one = next(list_actions(client, limit=1))
    return one.who, one.what, one.on


def fields_of(page: str) -> dict[str, str]:
    """Return the fields of the form of a policy, as a browser sends them."""
    form = page[page.index('id="policy-form"') :].partition("</form>")[0]
    fields = dict(re.findall(r'<input (?:type="hidden" )?name="([^"]+)" value="([^"]*)"', form))
    for name, choices in re.findall(r'<select name="([^"]+)">(.*?)</select>', form, re.DOTALL):
        fields[name] = next(iter(re.findall(r'value="([^"]*)" selected', choices)), "")
    return fields


def change(visitor: FlaskClient, tenant: str, **fields: str) -> TestResponse:
    """Load the page of a tenant, fill in some fields of its form, and send it."""
    given = fields_of(visitor.get(f"/console/tenants/{tenant}").text)
    assert set(fields) <= set(given)
    return press(visitor, f"tenants/{tenant}/policy", **(given | fields))


def test_fields_that_were_edited_are_changed_and_recorded_and_others_stay(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    Groups(redis_client).set("lab", GroupPolicy())
    Tenants(redis_client).set("blue", TenantPolicy(weight=2.0, rpm=60, models=("m", "n"), disabled=True))
    with structlog.testing.capture_logs() as lines:
        answer = change(
            visitor,
            "blue",
            weight="2.5",
            rpm="",
            max_waiting="40",
            tokens_per_day="1000",
            max_deadline="5m",
            group="lab",
            disabled="no",
            private="yes",
            default_model="n",
        )
    assert answer.status_code == 200
    assert Tenants(redis_client).get("blue") == TenantPolicy(
        weight=2.5,
        max_waiting=40,
        tokens_per_day=1_000,
        max_deadline_ms=300_000,
        models=("m", "n"),
        group="lab",
        private=True,
        default_model="n",
    )
    who, what, on = newest(redis_client)
    assert (who, what) == ("anyone", "tenant.set")
    assert on.startswith("tenant blue: weight=2.5 group=lab max_waiting=40 rpm=default")
    assert "models" not in on
    assert [(line["what"], line["on"]) for line in lines if line["event"] == "admin.action"] == [(what, on)]
    # The answer has the form anew, with the new values and their copies.
    assert 'hx-swap-oob="true"' in answer.text
    assert fields_of(answer.text)["was-weight"] == "2.5"


def test_what_another_operator_has_changed_meanwhile_stays(visitor: FlaskClient, redis_client: redis.Redis) -> None:
    Tenants(redis_client).set("blue", TenantPolicy(rpm=60))
    shown = fields_of(visitor.get("/console/tenants/blue").text)
    Tenants(redis_client).change("blue", {"rpm": 90, "weight": 3.0})
    assert press(visitor, "tenants/blue/policy", **(shown | {"tpm": "500"})).status_code == 200
    assert Tenants(redis_client).get("blue") == TenantPolicy(rpm=90, weight=3.0, tpm=500)


def test_a_raised_bound_admits_what_was_refused(visitor: FlaskClient, store: Store, redis_client: redis.Redis) -> None:
    heartbeat(store)
    Tenants(redis_client).set("blue", TenantPolicy(max_waiting=1))
    assert submit(visitor, headers={"X-Tenant": "blue"}).status_code == 202
    assert submit(visitor, headers={"X-Tenant": "blue"}).status_code == 503
    assert change(visitor, "blue", max_waiting="2").status_code == 200
    heartbeat(store)  # the first one may be too old by now on a busy machine
    assert submit(visitor, headers={"X-Tenant": "blue"}).status_code == 202


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("weight", "abc", "weight='abc' is neither a number nor `default`"),
        ("weight", "0", "weight=0.0 is out of range: 0.001 to 1000"),
        ("rpm", "-1", "rpm=-1 is not a whole number from 1 to 10000000"),
        ("max_deadline", "5 parsecs", "max_deadline='5 parsecs' is not a duration"),
        ("max_deadline", "400d", "max_deadline_ms=34560000000 is not a whole number"),
        ("group", "none", "group='none' does not exist"),
        ("disabled", "maybe", "disabled='maybe' is neither `yes` nor `no`"),
        ("models", "a b", "models='a b' is not a model name"),
    ],
)
def test_an_invalid_value_is_refused_with_the_field_and_the_value_and_nothing_is_changed(
    visitor: FlaskClient, redis_client: redis.Redis, field: str, text: str, message: str
) -> None:
    Tenants(redis_client).set("blue", TenantPolicy(weight=2.0))
    actions = redis_client.xlen(keys.admin_actions())
    assert message in fault(change(visitor, "blue", **{field: text}), 422, "invalid_value", field)
    assert Tenants(redis_client).get("blue") == TenantPolicy(weight=2.0)
    assert redis_client.xlen(keys.admin_actions()) == actions


def test_a_form_without_a_change_is_refused(visitor: FlaskClient) -> None:
    assert "change at least one field" in fault(change(visitor, "blue"), 422, "invalid_value", "name")


def test_a_key_is_made_shown_once_works_and_is_nowhere_else(
    visitor: FlaskClient, store: Store, settings: Settings, redis_client: redis.Redis
) -> None:
    heartbeat(store)
    with structlog.testing.capture_logs() as lines:
        answer = press(visitor, "tenants/blue/keys", label="laptop", expires="90d", act_as="team-*", rpm="60")
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"
    (key,) = re.findall(r"psk_[A-Za-z0-9_-]+", answer.text)
    record = ApiKeys(redis_client).find(digest_of(key))
    assert record is not None
    assert (record.tenant, record.label, record.act_as, record.bounds) == (
        "blue",
        "laptop",
        "team-*",
        KeyBounds(rpm=60),
    )
    assert record.expires_ms == record.created_ms + 90 * 86_400_000
    assert newest(redis_client)[1] == "key.add"
    assert record.id in newest(redis_client)[2]
    page = visitor.get("/console/tenants/blue").text
    assert record.id in page
    stored = [redis_client.hgetall(keys.keys()), list(redis_client.xrange(keys.admin_actions()))]
    assert key not in page + str(lines) + str(stored)
    guarded = a_door(store, settings, auth="required")
    assert guarded.get("/v1/queue", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_a_door_that_checks_no_keys_says_so_where_keys_are_made(
    visitor: FlaskClient, store: Store, settings: Settings, redis_client: redis.Redis
) -> None:
    ignored = "This door checks no keys"
    assert ignored in visitor.get("/console/tenants/blue").text
    assert ignored in press(visitor, "tenants/blue/keys", label="laptop").text
    admin_key, _ = AdminKeys(redis_client).create("kim")
    guarded = a_door(store, settings, auth="required")
    page = guarded.get("/console/tenants/blue", headers={"Authorization": f"Bearer {admin_key}"})
    assert "API keys" in page.text
    assert ignored not in page.text


def test_the_requests_of_a_tenants_jobs_are_kept_from_the_console_on(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    assert change(visitor, "blue", run_again="yes").status_code == 200
    policy, _ = Tenants(redis_client).read("blue")
    assert policy is not None
    assert policy.run_again
    assert change(visitor, "blue", run_again="no").status_code == 200
    policy, _ = Tenants(redis_client).read("blue")
    assert policy is not None
    assert not policy.run_again


def test_a_key_is_rotated_and_removed_only_on_its_tenants_page(visitor: FlaskClient, redis_client: redis.Redis) -> None:
    old = ApiKeys(redis_client).create("blue", label="laptop").record
    rotated = press(visitor, "tenants/blue/keys/rotate", key=old.id)
    (key,) = re.findall(r"psk_[A-Za-z0-9_-]+", rotated.text)
    new = ApiKeys(redis_client).find(digest_of(key))
    assert new is not None
    assert newest(redis_client)[1] == "key.rotate"
    assert "was rotated already" in fault(
        press(visitor, "tenants/blue/keys/rotate", key=old.id), 422, "invalid_value", "name"
    )
    fault(press(visitor, "tenants/red/keys/remove", key=new.id), 422, "invalid_value", "key")
    fault(press(visitor, "tenants/red/keys/rotate", key=new.id), 422, "invalid_value", "key")
    removed = press(visitor, "tenants/blue/keys/remove", key=new.id)
    assert f"Key {new.id} of tenant blue is removed" in removed.text
    assert newest(redis_client)[1:] == ("key.rm", f"key {new.id} of tenant blue, 'laptop'")
    assert ApiKeys(redis_client).find(digest_of(key)) is None


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"label": "laptop"}, "label", "already has a key"),
        ({"label": " a\nb "}, "label", "printable characters"),
        ({"expires": "soon"}, "expires", "expires='soon' is not a duration"),
        ({"expires": "9999d"}, "expires", "ten years"),
        ({"act_as": "a b"}, "act_as", "is not a pattern"),
        ({"rpm": "many"}, "rpm", "rpm='many' is neither a whole number nor `none`"),
        ({"tpm": "0"}, "tpm", "tpm=0 is not a whole number from 1"),
    ],
)
def test_an_invalid_key_is_refused_with_the_field_and_the_value(
    visitor: FlaskClient, redis_client: redis.Redis, fields: dict[str, str], param: str, message: str
) -> None:
    ApiKeys(redis_client).create("blue", label="laptop")
    assert message in fault(press(visitor, "tenants/blue/keys", **fields), 422, "invalid_value", param)
    assert len(ApiKeys(redis_client).ls("blue")[1]) == 1


def test_a_change_is_recorded_with_the_name_of_the_admin_key(
    store: Store, settings: Settings, redis_client: redis.Redis
) -> None:
    guarded = a_door(store, settings, auth="required")
    key, _ = AdminKeys(redis_client).create("ada")
    sent = {"Authorization": f"Bearer {key}"}
    assert press(guarded, "tenants/blue/policy", sent, **{"weight": "2", "was-weight": ""}).status_code == 200
    assert newest(redis_client) == ("ada", "tenant.set", "tenant blue: weight=2.0")
    assert guarded.post("/console/tenants/blue/keys", data={}).status_code == 401


def test_hostile_labels_patterns_and_names_are_shown_as_text(visitor: FlaskClient, redis_client: redis.Redis) -> None:
    ApiKeys(redis_client).create("blue", label=ATTACK)
    assert ATTACK not in visitor.get("/console/tenants/blue").text
    answer = press(visitor, f"tenants/{ATTACK.replace('/', '')}/keys")
    assert answer.status_code == 422

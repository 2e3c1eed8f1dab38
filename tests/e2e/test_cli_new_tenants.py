"""The commands that accept a tenant's name say if the tenant is new, so that a misspelled name is noticed."""

from pathlib import Path

import pytest
import redis

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.program import Program, program


@pytest.fixture
def penstock(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Program:
    """The program on the session's store, which is empty."""
    return program(tmp_path, REDIS_URL=store_url)


@pytest.mark.parametrize("command", [["keys", "add"], ["tenants", "set", "--weight", "2"]])
def test_a_misspelled_tenant_is_accepted_as_a_new_one_and_the_known_one_is_named(
    penstock: Program, redis_client: redis.Redis, command: list[str]
) -> None:
    Tenants(redis_client).set("gateway-1", TenantPolicy())
    misspelled = penstock(*command, "gateway_1")
    assert misspelled.returncode == 0
    assert "tenant 'gateway_1' is new; did you mean 'gateway-1'?\n" in misspelled.stderr
    assert "is new" not in penstock(*command, "gateway-1").stderr
    assert "tenant 'blue' is new\n" in penstock(*command, "blue").stderr


def test_a_new_key_says_that_an_open_door_ignores_it(tmp_path: Path, store_url: str) -> None:
    for auth, said in (("open", True), ("required", False)):
        done = program(tmp_path, REDIS_URL=store_url, PENSTOCK_AUTH=auth)("keys", "add", f"blue-{auth}")
        assert done.returncode == 0
        assert ("jobs with this key count for the tenant that X-Tenant names, or `default`" in done.stderr) is said

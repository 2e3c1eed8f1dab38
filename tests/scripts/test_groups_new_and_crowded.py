"""Tests of groups without a leased job, and of groups with more tenants than one claim examines."""

from shared.store import keys
from tests.scripts.test_groups import pool, put, queue, service_mwt, set_group, turns
from tests.support.builders import MODEL, claim

__all__ = ["pool"]


def test_many_tenants_of_a_group_whose_jobs_fit_no_free_cells_keep_nobody_else_from_its_turn(pool):
    crowd = [f"t{i}" for i in range(80)]
    put(pool, "team", *crowd)
    queue(pool, 1, *crowd, prompt_tokens=3_000)
    queue(pool, 1, "x")
    assert [job.tenant for job in claim(pool, cells_free=100)] == ["x"]


def test_a_tenant_takes_its_debt_through_groups_without_a_leased_job(pool):
    for group in ("new", "newer"):
        set_group(pool, group)
    queue(pool, 20, "x", "y")
    turns(pool, 4)
    pool.client.hincrby(keys.tenant("x"), keys.service_field(MODEL), 450_000)
    debt = service_mwt(pool, "x") - int(pool.client.hget(keys.books(MODEL), "v"))
    for group in ("new", "newer", "new", ""):
        put(pool, group, "x")
        pool.reconcile("x", MODEL)
    assert service_mwt(pool, "x") - int(pool.client.hget(keys.books(MODEL), "v")) == debt

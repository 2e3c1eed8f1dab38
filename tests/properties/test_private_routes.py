"""No private prompt ever reaches a pool that is not marked as local: over random routes, books and courses of jobs."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.accounts.routes import Routes
from shared.accounts.tenants import Tenants
from shared.audit.invariants import find_breaches
from shared.errors import ConfigError
from shared.jobs.job import ClaimedJob
from shared.jobs.route import FEATURES, Route, RouteStep
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.replies import Admitted
from shared.store.store import Store
from tests.support.builders import a_job, advance_clock, an_ending, new_job_id
from tests.support.cell import empty
from tests.support.examples import examples
from tests.support.routed import serve, set_terms, to

POOLS = ("p0", "p1", "p2", "p3")
TENANTS = ("open", "quiet")

steps = st.builds(
    RouteStep,
    pool=st.sampled_from(POOLS),
    max_prompt=st.none() | st.integers(5, 30),
    features=st.none() | st.sets(st.sampled_from(FEATURES)).map(tuple),
    end_within=st.none() | st.integers(1, 10_000),
    max_price_micro=st.none() | st.integers(0, 100),
    share=st.none() | st.integers(1, 9_999),
)
requests = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(TENANTS),
        "private": st.booleans(),
        "escalates": st.booleans(),
        "prompt_tokens": st.integers(1, 40),
        "features": st.sets(st.sampled_from(FEATURES)).map(tuple),
        "route": st.integers(0, 2),
        "pool": st.none() | st.sampled_from(POOLS),
    }
)
courses = st.lists(
    st.one_of(
        requests,
        st.tuples(
            st.sampled_from(["claim", "claim", "release", "lapse", "escalate", "settle", "mark"]),
            st.sampled_from(POOLS),
        ),
    ),
    min_size=10,
    max_size=50,
)


def is_private(request) -> bool:
    return request["private"] or request["tenant"] == "quiet"


def offer(store: Store, routes: list[Route], request) -> Admitted | None:
    tokens = {"prompt_tokens": request["prompt_tokens"], "private": request["private"]}
    if request["pool"] is not None or not routes:
        job = a_job(request["tenant"], model=request["pool"] or "p0", cost_mwt=None, **tokens)
    else:
        route = routes[request["route"] % len(routes)]
        more = {name: request[name] for name in ("escalates", "features")}
        job = to(route, request["tenant"], **tokens, **more)
    answer = store.admit(job)
    return answer if isinstance(answer, Admitted) else None


def add_routes(store: Store, drawn: list[list[RouteStep]]) -> list[Route]:
    """Add those of the drawn routes that are valid."""
    routes = []
    for number, pools in enumerate(drawn):
        try:
            routes.append(Route(f"route{number}", tuple(pools)))
        except ConfigError:
            continue
        Routes(store.client).add(routes[-1])
    return routes


def claim_in(store: Store, pool: str) -> list[ClaimedJob]:
    """Claim for the worker of a pool, which gets only jobs of its model."""
    jobs = store.claim(f"worker-of-{pool}", new_job_id(), pool, room=2, cells_free=10**6)
    assert {job.model for job in jobs} <= {pool}
    return jobs


def go_on(store: Store, action: str, pool: str, job: ClaimedJob) -> None:
    """Release, settle or escalate a claimed job, whose lease may have ended."""
    if action == "release":
        store.release(f"worker-of-{pool}", [job.held])
    elif action == "settle" or store.escalate(an_ending(job.held)) is None:
        store.settle(an_ending(job.held), f"worker-of-{pool}")


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    drawn=st.lists(st.lists(steps, min_size=1, max_size=4), min_size=1, max_size=3),
    local=st.sets(st.sampled_from(POOLS)),
    live=st.sets(st.sampled_from(POOLS), min_size=1),
    capped=st.sets(st.sampled_from(POOLS)),
    course=courses,
)
def test_no_private_prompt_reaches_a_pool_that_is_not_local(store, drawn, local, live, capped, course):
    empty(store.client)
    store.client.hset(keys.config(), mapping={"max_inflight": 12, "lease_ms": 1_000})
    Tenants(store.client).set("quiet", TenantPolicy(private=True))
    for pool in POOLS:
        cap = 60 if pool in capped else None
        set_terms(store, pool, local=pool in local, answer_price_micro=1_000, day_cap_micro=cap)
    serve(store, *live, slots=2, mu_wtps=2_000, prefill_tps=1_000, tpot_ms=5)
    routes = add_routes(store, drawn)
    private: set[str] = set()
    running = {pool: [] for pool in POOLS}
    for step in course:
        if isinstance(step, dict):
            admitted = offer(store, routes, step)
            private |= {admitted.id} if admitted and is_private(step) else set()
        elif step[0] == "mark":
            local = local ^ {step[1]}
            set_terms(store, step[1], local=step[1] in local)
        elif step[0] == "lapse":
            advance_clock(store, 900)
            serve(store, *live, slots=2, mu_wtps=2_000, prefill_tps=1_000, tpot_ms=5)
            store.reap()
        elif step[0] == "claim":
            taken = claim_in(store, step[1])
            assert step[1] in local or not {job.id for job in taken} & private
            running[step[1]] += taken
        elif running[step[1]]:
            go_on(store, *step, running[step[1]].pop())
    assert find_breaches(store.client) == []

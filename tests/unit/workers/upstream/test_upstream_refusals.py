"""Tests of requests that the upstream refuses, and of failures in a row: whose jobs wait, and which fail at once."""

from collections.abc import Iterator
from typing import Any

import pytest

from shared.jobs.job import ClaimRef
from tests.support.processes import wait_for
from tests.support.raw_upstream import STREAM, RawUpstream
from tests.support.upstream_scene import UpstreamScene, claim
from tests.support.upstream_server import KEY, UpstreamServer
from workers.engine.events import Ended


@pytest.fixture
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer() as server:
        yield server


@pytest.fixture
def scene(server: UpstreamServer) -> Iterator[UpstreamScene]:
    scene = UpstreamScene(server.url, PENSTOCK_MAX_BATCH_SIZE="4", PENSTOCK_UPSTREAM_API_KEY=KEY)
    yield scene
    scene.close()


def ask(scene: UpstreamScene, what: str, job_id: str = "1", **fields: Any) -> Ended:
    """Send a request whose text says how it is answered, and return its end."""
    return scene.end({"messages": [{"role": "user", "content": f"please {what}"}]}, job_id, **fields)


# Busy answers.


@pytest.mark.parametrize(
    ("behaviour", "wait_s", "message"),
    [
        ("busy", 0.3, "the upstream answered 429: too many requests"),
        ("loading", 1.0, "the upstream answered 503: Loading model"),
        ("429", 1.0, "the upstream answered 429: no such thing, said ***"),
    ],
)
def test_a_request_that_is_refused_waits_by_itself(
    scene: UpstreamScene, behaviour: str, wait_s: float, message: str
) -> None:
    ended = ask(scene, behaviour)
    assert (ended.outcome, ended.wait_s, ended.message) == ("returned", wait_s, message)
    capacity = scene.engine.free_capacity()
    assert (capacity.slots, capacity.live, capacity.aside) == (4, True, ())


@pytest.mark.parametrize("hint", ["0.3", "3600", "nonsense"])
def test_many_refused_jobs_of_one_tenant_set_that_tenant_aside_and_nobody_else(
    scene: UpstreamScene, server: UpstreamServer, hint: str
) -> None:
    server.retry_after = {"Retry-After": hint}
    for number in range(6):
        assert ask(scene, "busy", str(number), tenant="loud").outcome == "returned"
    wait_for(lambda: scene.engine.free_capacity().aside == ("loud",), "the tenant to be set aside")
    capacity = scene.engine.free_capacity()
    assert (capacity.slots, capacity.live) == (4, True)
    assert ask(scene, "answer", "9", tenant="quiet").outcome == "succeeded"


def test_a_tenant_that_was_set_aside_comes_back_when_its_wait_is_over(scene: UpstreamScene) -> None:
    for number in range(2):
        ask(scene, "busy", str(number))
    wait_for(lambda: scene.engine.free_capacity().aside == ("blue",), "the tenant to be set aside")
    rooms = scene.rooms
    wait_for(lambda: scene.engine.free_capacity().aside == (), "the end of its wait")
    wait_for(lambda: scene.rooms > rooms, "the word that a job can be claimed")
    assert ask(scene, "answer", "3").outcome == "succeeded"


@pytest.mark.parametrize("behaviour", ["busy", "loading", "429"])
def test_if_jobs_of_different_tenants_are_refused_everybody_waits_until_a_request_is_taken(
    scene: UpstreamScene, server: UpstreamServer, behaviour: str
) -> None:
    for tenant in ("red", "green"):
        assert ask(scene, behaviour, tenant, tenant=tenant).outcome == "returned"
    assert scene.engine.free_capacity().slots == 0
    wait_for(lambda: scene.engine.free_capacity().slots == 1, "the end of the pause")
    server.words, server.word_s = 1_000, 0.01
    scene.submit(job_id="long")
    # The server has taken this request, so the others need not wait for its end.
    wait_for(lambda: scene.engine.free_capacity().slots == scene.engine.slots - 1, "room for the others")
    scene.engine.cancel(claim("long"))
    assert scene.ended("long").outcome == "canceled"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_if_a_probe_is_refused_too_the_upstream_is_away(
    scene: UpstreamScene, server: UpstreamServer, status: int
) -> None:
    scene.wait_until_open()
    server.models_status = status
    assert ask(scene, "loading").outcome == "returned"
    wait_for(lambda: not scene.engine.free_capacity().live, "a worker that is not live")
    server.models_status = 0
    assert ask(scene, "answer", "2").outcome == "succeeded"


def test_refusals_of_one_tenants_jobs_do_not_reduce_the_number_of_requests(scene: UpstreamScene) -> None:
    for number in range(5):
        ask(scene, "429", str(number), tenant="loud")
    assert scene.engine.slots == 4


def test_a_job_that_was_refused_and_succeeds_later_was_one_too_many(
    scene: UpstreamScene, server: UpstreamServer
) -> None:
    server.will("busy")
    assert scene.end(token="a").outcome == "returned"
    assert scene.engine.slots == 4
    assert scene.end(token="b").outcome == "succeeded"
    assert scene.engine.slots == 2


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, {"code": "insufficient_quota", "type": "insufficient_quota"}),
        (429, {"type": "exceeded_current_quota_error"}),
        (429, {"code": "billing_hard_limit_reached"}),
        (429, {"code": "insufficient_user_quota"}),
        (503, {"code": "INSUFFICIENT_BALANCE"}),
        (402, {"code": "whatever"}),
        (403, {"code": "Arrearage"}),
        (403, {"code": "insufficient_user_quota"}),
        (500, {"type": "insufficient_balance"}),
        (200, {"code": "insufficient_quota"}),
    ],
)
def test_a_quota_that_is_used_up_fails_the_job_at_once_with_the_reason(status: int, error: dict[str, Any]) -> None:
    body = str({"error": {"message": "Your quota is used up", **error}}).replace("'", '"').encode()
    with RawUpstream() as raw:
        scene = UpstreamScene(raw.url)
        raw.will(b"HTTP/1.1 %d No\r\nRetry-After: 60\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        ended = scene.end()
        assert (ended.outcome, ended.code, ended.message) == ("failed", "upstream_rejected", "Your quota is used up")
        assert scene.engine.free_capacity().slots == 2
        scene.close()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, {"code": "rate_limit_exceeded"}),
        (429, {"type": "requests"}),
        (429, {"code": 429}),
        (429, {}),
        (429, {"code": "Throttling.RateQuota", "type": "Throttling.RateQuota"}),
        (429, {"code": "Throttling.AllocationQuota"}),
        (503, {"code": "rebalance_in_progress"}),
        (503, {"code": "no_balanced_backend"}),
        (503, {"type": "payment_service_unavailable"}),
        (503, {"type": "load_balancer_error"}),
        (529, {"type": "overloaded_error"}),
    ],
)
def test_a_rate_that_was_exceeded_is_no_quota(status: int, error: dict[str, Any]) -> None:
    body = str({"error": {"message": "You exceeded your quota", **error}}).replace("'", '"').encode()
    with RawUpstream() as raw:
        scene = UpstreamScene(raw.url)
        raw.will(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        assert scene.end().outcome == "returned"
        scene.close()


# Requests that are not accepted: a wrong key, a wrong model, a wrong address.


@pytest.mark.parametrize("status", [401, 403, 307, 308])
def test_a_replica_that_accepts_no_request_is_away_until_it_accepts_an_empty_one(
    scene: UpstreamScene, server: UpstreamServer, status: int
) -> None:
    scene.wait_until_open()
    server.status = status
    ended = scene.end()
    assert (ended.outcome, ended.usage.read_tokens) == ("returned", 0)
    assert f"the upstream answered {status}" in ended.message
    capacity = scene.engine.free_capacity()
    assert (capacity.slots, capacity.live) == (0, False)
    probes = server.probes
    wait_for(lambda: server.probes > probes, "another probe")
    assert not scene.engine.free_capacity().live
    server.status = 0
    assert scene.end(job_id="2").outcome == "succeeded"


def test_a_worker_with_a_wrong_key_is_not_live_until_its_key_is_accepted() -> None:
    with UpstreamServer(key="another") as server:
        server.models_status = 401
        scene = UpstreamScene(server.url, PENSTOCK_UPSTREAM_API_KEY=KEY)
        wait_for(lambda: server.probes >= 2, "probes with the key")
        assert not scene.engine.free_capacity().live
        server.key = KEY
        assert scene.end().outcome == "succeeded"
        scene.close()


def test_a_key_that_may_not_list_models_is_accepted_all_the_same() -> None:
    with UpstreamServer(key=KEY) as server:
        server.models_status = 403
        scene = UpstreamScene(server.url, PENSTOCK_UPSTREAM_API_KEY=KEY)
        assert scene.end().outcome == "succeeded"
        scene.close()


def test_a_replica_that_lacks_the_model_is_away_until_it_lists_it(scene: UpstreamScene, server: UpstreamServer) -> None:
    scene.wait_until_open()
    server.models, server.status = ["another"], 404
    assert scene.end().outcome == "returned"
    assert not scene.engine.free_capacity().live
    server.models, server.status = ["another", "m"], 0
    assert scene.end(job_id="2").outcome == "succeeded"


@pytest.mark.parametrize("status", [307, 401, 403, 404])
def test_a_request_that_alone_is_not_accepted_fails_at_once_and_the_others_continue(
    scene: UpstreamScene, status: int
) -> None:
    ended = ask(scene, str(status))
    assert (ended.outcome, ended.code) == ("failed", "upstream_rejected")
    assert "sk-test" not in ended.message
    capacity = scene.engine.free_capacity()
    assert (capacity.slots, capacity.live, capacity.aside) == (4, True, ())
    assert ask(scene, "answer", "2").outcome == "succeeded"


# Failures.


def test_failures_of_one_tenants_jobs_set_only_that_tenant_aside(scene: UpstreamScene) -> None:
    for number in range(4):
        assert ask(scene, "fault", str(number), tenant="loud").outcome == "attempt_failed"
    wait_for(lambda: scene.engine.free_capacity().aside == ("loud",), "the tenant to be set aside")
    assert scene.engine.free_capacity().slots == 4


@pytest.mark.parametrize(("attempt", "wait_s"), [(1, 0.25), (2, 0.5)])
def test_a_failed_attempt_is_not_repeated_at_once(scene: UpstreamScene, attempt: int, wait_s: float) -> None:
    ended = ask(scene, "fault", attempt=attempt)
    assert (ended.outcome, ended.wait_s) == ("attempt_failed", wait_s)


def test_after_an_answer_broke_off_the_upstream_is_probed_before_anything_is_sent(
    scene: UpstreamScene, server: UpstreamServer
) -> None:
    scene.wait_until_open()
    server.models_status = 500
    assert ask(scene, "cut").outcome == "attempt_failed"
    capacity = scene.engine.free_capacity()
    assert (capacity.slots, capacity.live) == (0, True)
    wait_for(lambda: not scene.engine.free_capacity().live, "the probe")
    server.models_status = 0
    assert ask(scene, "answer", "2").outcome == "succeeded"


@pytest.mark.parametrize("again", ["cut", "fault", "crash"])
def test_a_crash_costs_a_job_one_attempt(scene: UpstreamScene, again: str) -> None:
    assert ask(scene, "cut", "1", token="a").outcome == "attempt_failed"
    second = ask(scene, again, "1", token="b", attempt=2)
    assert second.outcome == "returned"
    assert ask(scene, "cut", "2", token="a").outcome == "attempt_failed"


def test_after_a_success_a_further_break_is_another_crash(scene: UpstreamScene) -> None:
    assert ask(scene, "cut", "1", token="a").outcome == "attempt_failed"
    assert ask(scene, "answer", "2").outcome == "succeeded"
    assert ask(scene, "cut", "1", token="b", attempt=2).outcome == "attempt_failed"


def test_a_job_that_breaks_the_upstream_again_and_again_fails(scene: UpstreamScene) -> None:
    attempt, outcomes = 1, []
    while not outcomes or outcomes[-1] != "failed":
        outcomes.append(ask(scene, "cut", "1", token=str(len(outcomes)), attempt=attempt).outcome)
        attempt += outcomes[-1] == "attempt_failed"
        assert len(outcomes) < 10
    assert outcomes == ["attempt_failed", "returned", "returned", "attempt_failed", "failed"]


def test_jobs_on_their_last_attempt_are_trusted_once_one_has_succeeded_until_an_attempt_fails(
    scene: UpstreamScene,
) -> None:
    def trusts() -> bool:
        return scene.engine.free_capacity().trusts_last_attempts

    ask(scene, "answer", "1", attempt=2)
    assert not trusts()
    ask(scene, "answer", "2", attempt=3)
    assert trusts()
    ask(scene, "fault", "3")
    assert not trusts()


# Requests that are left without an answer.


def test_requests_that_are_overtaken_leave_their_places_and_set_their_tenant_aside(scene: UpstreamScene) -> None:
    ask(scene, "answer", "0")
    hang = {"messages": [{"role": "user", "content": "please hang"}]}
    for number in range(3):
        scene.submit(hang, str(number), "hang", tenant="loud")
    assert scene.engine.free_capacity().slots == 1
    ask(scene, "answer", "1")
    wait_for(lambda: scene.engine.free_capacity().slots == 4, "the places of the requests that hang")
    assert scene.engine.free_capacity().aside == ("loud",)
    assert scene.engine.slots == 7
    for number in range(3):
        scene.engine.cancel(ClaimRef(str(number), "hang"))
    wait_for(lambda: scene.engine.slots == 4, "the end of the requests that hang")
    assert scene.engine.free_capacity().aside == ()


def test_if_nothing_is_answered_no_request_leaves_its_place(scene: UpstreamScene, server: UpstreamServer) -> None:
    ask(scene, "answer", "0")
    hang = {"messages": [{"role": "user", "content": "please hang"}]}
    for number in range(4):
        scene.submit(hang, str(number), "hang")
    server.wait_for_requests(5)
    sweeps = scene.engine.stats.sweeps
    wait_for(lambda: scene.engine.stats.sweeps > sweeps + 12, "more than a second")
    assert (scene.engine.free_capacity().slots, scene.engine.slots) == (0, 4)


def test_a_stream_that_begins_with_a_refusal_is_one() -> None:
    with RawUpstream() as raw:
        scene = UpstreamScene(raw.url)
        raw.will(STREAM + b'data: {"error": {"message": "too many", "code": 429}}\n\n')
        ended = scene.end()
        assert (ended.outcome, ended.message) == ("returned", "the upstream answered 429: too many")
        scene.close()

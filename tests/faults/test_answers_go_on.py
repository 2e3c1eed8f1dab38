"""Tests that an answer of the demo model is the same however often its worker is killed at whatever token.

The workers run in one thread, so that they are killed exactly where the test says.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shared.accounts.usage import UsageRecords, sum_by
from shared.candidates import MAX_CANDIDATES, read_candidates
from shared.clock import ManualClock
from shared.jobs.job import JobView
from shared.jobs.outcomes import Outcome
from shared.settings.settings import load
from shared.store import keys
from shared.store.store import Store
from tests.support.answers import PARTIAL
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    heartbeat,
    hold_clock,
    pass_time,
    reconfigure,
    view_of,
)
from workers.demo import demo_model_path
from workers.demo.vocabulary import EOS_ID
from workers.duties.job_loop import JobLoop
from workers.engine.loop import Engine
from workers.engine.stats import EngineSettings

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

#: The default of PENSTOCK_RESUME_TOKENS.
RESUME_TOKENS = 32
LENGTH = 90
#: Long names, so that an answer has more than 30 tokens, between which its worker can be killed.
NAMES = {"type": "array", "items": {"type": "string", "minLength": 24}, "minItems": 3}
SCHEMA = {"type": "object", "properties": {"names": NAMES}, "required": ["names"]}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 7},
    "penalties": {"seed": 5, "repeat_penalty": 1.3, "presence_penalty": 0.5},
    "stop string": {"temperature": 0, "stop": [" never comes ", ".\n\nX"]},
    "characters of several tokens": {
        "temperature": 0,
        "repeat_penalty": 1.5,
        "response_format": {"type": "regex", "regex": "[éüñ€😀]{30}"},
    },
    "schema": {"seed": 4, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    "logprobs": {"seed": 7, "logprobs": 2},
}


@pytest.fixture(scope="module")
def backend() -> Iterator[Any]:
    """The demo model with eight slots."""
    from workers.engine.llama.backend import load_backend

    settings = load({}, None, device="cpu", max_batch_size=8, kv_cells=4096, threads=1)
    backend = load_backend(settings, demo_model_path())
    yield backend
    backend.close()


class Worker:
    """A worker that computes one step after each of its passes, and then 10 ms have passed."""

    def __init__(self, store: Store, backend: Any, name: str) -> None:
        self._store, self._clock, self._name = store, ManualClock(), name

        def start_engine(emit: Any, *, on_ending: Any) -> Engine:
            return Engine(backend, EngineSettings(reuse=False), emit, self._clock, on_ending=on_ending)

        self.loop = JobLoop(
            store,
            name,
            MODEL,
            start_engine,
            generated_weight=4,
            prepare_threads=1,
            preempts=False,
            resume_tokens=RESUME_TOKENS,
            clock=self._clock,
        )
        self.engine = self.loop.engine
        facts = {"fingerprint": backend.facts.fingerprint}
        store.renew(a_heartbeat(name, slots=8, facts=facts), [])
        self.loop.claimer.paused = False

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Run passes and steps until the condition is true."""
        for _ in range(100_000):
            if condition():
                return
            self.loop.one_pass()
            self.engine.step()
            self._clock.advance(0.01)
        raise AssertionError("100,000 steps were not enough")

    def kill(self, most_lost: int = RESUME_TOKENS) -> None:
        """End the worker, as kill -9 does: its jobs stay leased, and nothing that it had not sent is sent.

        No job may lose more than `most_lost` tokens.
        """
        held = self.loop.claimed_jobs.held()
        for sequence in self.engine._by_key.values():
            job_id = sequence.key.id
            kept = max(0, self._store.client.strlen(PARTIAL + job_id) - 16) // 4
            # Of tokens that are computed one by one again, the answer has those so far.
            assert sequence.completion_tokens - kept <= most_lost
        self.engine.drop_all()
        pass_time(self._store, 16_500)
        assert self._store.reap().requeued == len(held)


def offer(store: Store, request: dict[str, Any], *, length: int = LENGTH, **fields: Any) -> str:
    """Admit a job with this request; return its id."""
    payload = {"prompt": "Once upon a time, a little fox", "max_tokens": length} | request
    heartbeat(store, "live", slots=1, slots_busy=1)
    job = a_job(payload=payload, max_tokens=length * request.get("n", 1), deadline_ms=3_600_000, **fields)
    return admitted(store, job)


def answer_of(store: Store, job_id: str) -> JobView:
    """Return a job that must have succeeded, and whose stream must have its text without a gap or a repeat."""
    view = view_of(store, job_id)
    assert view.state == Outcome.SUCCEEDED, view
    events = [fields for _, fields in store.read_events({job_id: "0"}, block_ms=1)[job_id]]
    streamed = "".join(fields["text"] for fields in events if fields["type"] == "token")
    # The pieces of candidates interleave.
    assert read_candidates(streamed, MAX_CANDIDATES) == read_candidates(view.text or "", MAX_CANDIDATES)
    counts = [int(fields["tokens"]) for fields in events if fields["type"] == "token"]
    assert counts == sorted(set(counts))
    return view


def assert_equal(view: JobView, alone: JobView) -> None:
    assert (view.text, view.finish_reason) == (alone.text, alone.finish_reason)
    assert view.usage is not None
    assert alone.usage is not None
    assert view.usage.completion_tokens == alone.usage.completion_tokens
    ours, expected = view.extra.get("logprobs") or [], alone.extra.get("logprobs") or []
    assert [token for token, *_ in ours] == [token for token, *_ in expected]


@pytest.fixture(autouse=True)
def time_stands_still(store: Store) -> None:
    """Let only the test move the store's time: after a pause of this process, no lease would end for a while."""
    hold_clock(store)


@pytest.fixture
def run(store: Store, backend: Any, settings: Any) -> Callable[..., list[JobView]]:
    """Return a function that runs requests, whose workers are killed when they have generated these many tokens."""
    reconfigure(store, settings, max_attempts=10)

    def run(*requests: dict[str, Any], kills: tuple[int, ...] = ()) -> list[JobView]:
        ids = [offer(store, request) for request in requests]
        for number, tokens in enumerate((*kills, None)):
            worker = Worker(store, backend, f"w{number}")
            if tokens is None:
                worker.run_until(lambda: store.client.zcard(keys.inflight()) == 0)
                worker.engine.check_idle()
            else:
                worker.run_until(lambda w=worker, n=tokens: w.engine.stats.completion_tokens >= n)
                worker.kill()
        views = [answer_of(store, job_id) for job_id in ids]
        assert {view.attempts for view in views} == {len(kills) + 1}
        return views

    return run


def assert_unchanged_by_kills(run: Callable[..., list[JobView]], request: dict[str, Any], dice: random.Random) -> None:
    (alone,) = run(request)
    assert alone.usage is not None
    length = alone.usage.completion_tokens
    assert length > 30
    for number_of_kills in (1, 3):
        first = dice.randint(1, length // 2)
        kills = (first, *[dice.randint(1, (length - first) // number_of_kills) for _ in range(number_of_kills - 1)])
        (view,) = run(request, kills=kills)
        assert_equal(view, alone)


@pytest.mark.parametrize("kind", [kind for kind, request in REQUESTS.items() if "seed" not in request])
def test_an_answer_is_the_same_however_often_its_worker_is_killed(run, kind):
    assert_unchanged_by_kills(run, REQUESTS[kind], random.Random(kind))


@pytest.mark.parametrize("kind", [kind for kind, request in REQUESTS.items() if "seed" in request])
def test_a_sampled_answer_is_the_same_except_where_rounding_decides(run, kind):
    """Several tokens computed at once are rounded otherwise than one by one, as docs/engine.md says.

    On some processors, one seed in eight has a token whose random number lies between the two results. If the random
    numbers or the state of the sampler were wrong, hardly any answer would stay the same.
    """
    request, dice, differing = REQUESTS[kind], random.Random(kind), []
    for seed in range(request["seed"], request["seed"] + 5):
        try:
            assert_unchanged_by_kills(run, request | {"seed": seed}, dice)
        except AssertionError as error:
            differing.append((seed, error))
    assert len(differing) <= 2, differing


def test_eight_answers_of_one_worker_are_the_same_after_it_is_killed(run, store):
    requests = [{"temperature": 0}, {"seed": 11}] * 4
    alone = run(*requests)
    wasted = store.client.hget(keys.stats(), "wasted|blue|retried")
    assert wasted is None
    views = run(*requests, kills=(8 * 50,))
    for view, reference in zip(views, alone, strict=True):
        assert_equal(view, reference)
    # Computed twice: each prompt, and about 50 tokens for each job. The last of them was not computed yet.
    twice = int(store.client.hget(keys.stats(), "wasted|blue|retried"))
    prompts = sum(view.usage.prompt_tokens for view in views)
    assert 8 * (50 - RESUME_TOKENS) <= twice - prompts <= 8 * 50


@pytest.mark.parametrize(("n", "kills"), [(8, (100,)), (12, (60, 200, 300)), (3, (5, 5, 100))])
def test_candidates_side_by_side_continue_after_their_own_tokens(run, n, kills):
    request = {"seed": 21, "n": n}
    (alone,) = run(request)
    (view,) = run(request, kills=kills)
    pairs = list(zip(read_candidates(view.text, n), read_candidates(alone.text, n), strict=True))
    assert all(ours.reason for ours, _ in pairs)
    # Rounding may decide a token of one of the candidates, as in the test of sampled answers.
    assert sum(ours != reference for ours, reference in pairs) <= n // 3
    assert len(view.extra["candidates"]) == n
    assert all(each["mean_logprob"] < 0 for each in view.extra["candidates"])


@pytest.mark.parametrize("kills", [(20,), (40, 10), (70,)])
def test_text_that_is_held_back_when_the_worker_is_killed_is_shown_once(run, kills):
    """The text begins like a stop string, so that none of it is shown until it differs."""
    (alone,) = run({"temperature": 0})
    request = {"temperature": 0, "stop": [f"{alone.text[:240]}, never"]}
    (view,) = run(request, kills=kills)
    assert_equal(view, alone)


def test_a_stop_string_whose_tokens_came_before_and_after_the_kill_ends_the_answer(run):
    (alone,) = run({"temperature": 0})
    stop = alone.text[100:130]
    at = alone.text.index(stop)
    (reference,) = run({"temperature": 0, "stop": [stop]})
    assert (reference.text, reference.finish_reason) == (alone.text[:at], "stop")
    for kill in range(reference.usage.completion_tokens - 6, reference.usage.completion_tokens):
        (view,) = run({"temperature": 0, "stop": [stop]}, kills=(kill,))
        assert_equal(view, reference)


def test_a_job_whose_ids_were_spoiled_is_answered_from_its_beginning(run, store, backend):
    (alone,) = run({"temperature": 0})
    job_id = offer(store, {"temperature": 0})
    worker = Worker(store, backend, "first")
    worker.run_until(lambda: worker.engine.stats.completion_tokens >= 50)
    store.client.setrange(PARTIAL + job_id, 20, b"\0\0\1\0")
    worker.kill()
    other = Worker(store, backend, "other")
    other.run_until(lambda: store.client.zcard(keys.inflight()) == 0)
    assert view_of(store, job_id).text == alone.text
    events = [fields for _, fields in store.read_events({job_id: "0"}, block_ms=1)[job_id]]
    second = next(n for n, fields in enumerate(events) if fields == {"type": "started", "attempt": "2"})
    assert "".join(fields["text"] for fields in events[second:] if fields["type"] == "token") == alone.text


def test_a_released_job_continues_elsewhere(run, store, backend):
    (alone,) = run({"seed": 5})
    job_id = offer(store, {"seed": 5})
    worker = Worker(store, backend, "draining")
    worker.run_until(lambda: worker.engine.stats.completion_tokens >= 40)
    (held,) = worker.loop.claimed_jobs.held()
    worker.engine.drop_all()
    assert store.release("draining", [held]) == 1
    other = Worker(store, backend, "other")
    other.run_until(lambda: store.client.zcard(keys.inflight()) == 0)
    view = answer_of(store, job_id)
    assert_equal(view, alone)
    assert view.attempts == 1


def test_an_answer_that_nobody_follows_loses_at_most_its_last_second(store, backend, settings):
    """A step takes 10 ms. The tokens that are generated twice are charged once, and a late follower sees each once."""
    reconfigure(store, settings, max_attempts=10)
    job_id = offer(store, {"temperature": 0, "logit_bias": {str(EOS_ID): -100}}, length=400, followed=0)
    for name, tokens in (("first", 70), ("second", 130)):
        worker = Worker(store, backend, name)
        worker.run_until(lambda w=worker, n=tokens: w.engine.stats.completion_tokens >= n)
        worker.kill(most_lost=100)
    other = Worker(store, backend, "other")
    other.run_until(lambda: other.engine.stats.completion_tokens >= 60)
    store.follow(job_id)
    other.loop.delivery.note_follower(job_id)
    other.run_until(lambda: store.client.zcard(keys.inflight()) == 0)
    view = answer_of(store, job_id)
    assert (view.attempts, view.usage.completion_tokens) == (3, 400)
    records = UsageRecords(store.client)
    (total,) = sum_by((), records.read([records.today()])).values()
    assert (total.succeeded, total.completion_tokens) == (1, 400)

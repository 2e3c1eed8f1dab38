"""Tests of one engine for several pools: each gets the events of its own jobs, which are computed with its adapter."""

from pathlib import Path

import pytest

from shared.clock import ManualClock
from shared.jobs.adapter_list import Adapter
from shared.jobs.job import ClaimRef
from workers.engine.events import Ended, JobSpec
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.stats import EngineSettings
from workers.pools.pool_engine import EventRouter, PoolEngine


@pytest.fixture
def engine():
    clock, router = ManualClock(), EventRouter()
    backend = SimBackend(slots=2, cells=1000, n_ctx=100, clock=clock, sleep=clock.advance)
    return Engine(backend, EngineSettings(), router.emit, clock), router


def submit(pool: PoolEngine, key: str) -> None:
    prepared = pool.prepare(JobSpec(ClaimRef(key, "t"), "blue", {"prompt": "a b", "max_tokens": 3}, 3, 1e12))
    pool.submit(prepared)


def test_each_pool_hears_of_its_own_jobs_alone(engine, tmp_path):
    own, router = engine
    heard = {"m": [], "m:a": []}
    base = PoolEngine(own, router)
    adapted = PoolEngine(own, router, Adapter("a", tmp_path / "a.gguf", "a"))
    base.connect(heard["m"].append, on_ending=lambda: None)
    adapted.connect(heard["m:a"].append, on_ending=lambda: None)
    submit(base, "1")
    submit(adapted, "2")
    submit(base, "3")
    while own.step():
        pass
    ended = {name: [event.key.id for event in events if isinstance(event, Ended)] for name, events in heard.items()}
    assert {name: sorted(ids) for name, ids in ended.items()} == {"m": ["1", "3"], "m:a": ["2"]}
    assert (router._emits, base._counted, adapted._counted) == ({}, {}, {})
    # Each counts the tokens of its own jobs, and the pool of the model what is the engine's.
    tokens = [(one.reported_stats().prompt_tokens, one.reported_stats().completion_tokens) for one in (base, adapted)]
    assert tokens == [(4, 6), (2, 3)]
    assert (base.reported_stats().steps, adapted.reported_stats().steps) == (own.stats.steps, 0)


def test_jobs_of_an_adapters_pool_are_computed_with_it(engine):
    own, router = engine
    spec = JobSpec(ClaimRef("1", "t"), "blue", {"prompt": "a"}, 3, 1e12)
    assert PoolEngine(own, router).prepare(spec).spec.adapter == ""
    assert PoolEngine(own, router, Adapter("a", Path("a"), "a")).prepare(spec).spec.adapter == "a"


def test_answers_continue_only_with_the_same_file_and_scale(engine, tmp_path):
    own, router = engine
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"two")
    adapters = [
        Adapter("a", tmp_path / "a", ""),
        Adapter("a", tmp_path / "b", ""),
        Adapter("a", tmp_path / "a", "", 0.5),
    ]
    prints = [PoolEngine(own, router, adapter).facts.fingerprint for adapter in (None, *adapters)]
    assert len(set(prints)) == 4
    assert PoolEngine(own, router, adapters[0]).facts.fingerprint == prints[1]

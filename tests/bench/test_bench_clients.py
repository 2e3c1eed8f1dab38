"""Tests that simulated clients retry after a refusal as the OpenAI package does, in nested layers, or never."""

import numpy as np
import pytest

from bench.sim.asks import Answer, SimJob
from bench.sim.clients import Layered, OneTry, OpenAIPackage

RNG = np.random.default_rng(0)
FULL = Answer(taken=False, reason="inflight_full", hint_ms=1_840)


def a_job(*, attempts=1, number=1):
    job = SimJob(number, "blue", 0.0, 10, 10, 100, 10_000)
    job.attempts = attempts
    return job


def test_a_client_of_an_open_loop_never_retries():
    assert OneTry().retry_delay_ms(a_job(), FULL, 0.0, RNG) is None


def test_a_client_that_obeys_a_hint_waits_exactly_that_long():
    assert OpenAIPackage().retry_delay_ms(a_job(), FULL, 0.0, RNG) == 1_840.0


def test_the_package_gives_up_after_its_retries():
    assert OpenAIPackage(retries=2).retry_delay_ms(a_job(attempts=3), FULL, 0.0, RNG) is None


@pytest.mark.parametrize(("attempts", "longest_ms"), [(1, 500), (2, 1_000), (3, 2_000), (9, 8_000)])
def test_without_a_hint_the_package_doubles_its_wait_up_to_eight_seconds(attempts, longest_ms):
    client = OpenAIPackage(retries=20, heeds=0.0)
    waits = [client.retry_delay_ms(a_job(attempts=attempts), FULL, 0.0, RNG) for _ in range(50)]
    assert all(0.75 * longest_ms <= wait <= longest_ms for wait in waits)


def test_a_client_that_is_advised_against_a_retry_retries_only_if_it_ignores_hints():
    refusal = Answer(taken=False, reason="deadline_unmeetable", hint_ms=1_000, worth_retrying=False)
    assert OpenAIPackage().retry_delay_ms(a_job(), refusal, 0.0, RNG) is None
    assert OpenAIPackage(heeds=0.0).retry_delay_ms(a_job(), refusal, 0.0, RNG) is not None


def test_the_given_share_of_jobs_obeys_hints_and_each_job_always_behaves_the_same():
    client = OpenAIPackage(heeds=0.3)
    heeded = [client.retry_delay_ms(a_job(number=n), FULL, 0.0, RNG) == 1_840.0 for n in range(2_000)]
    again = [client.retry_delay_ms(a_job(number=n, attempts=2), FULL, 0.0, RNG) == 1_840.0 for n in range(2_000)]
    assert sum(heeded) / 2_000 == pytest.approx(0.3, abs=0.02)
    assert heeded == again


def test_nested_layers_try_eighteen_times():
    tries, job = 1, a_job()
    while Layered().retry_delay_ms(job, FULL, 0.0, RNG) is not None:
        job.attempts += 1
        tries += 1
    assert tries == 18

"""Refused clients go on as the OpenAI package does, in layers, or not at all."""

import numpy as np
import pytest

from bench.sim.asks import Answer, Ask
from bench.sim.clients import Layered, OneTry, OpenAIPackage

RNG = np.random.default_rng(0)
FULL = Answer(taken=False, reason="inflight_full", hint_ms=1_840)


def an_ask(*, attempts=1, number=1):
    ask = Ask(number, "blue", 0.0, 10, 10, 100, 10_000)
    ask.attempts = attempts
    return ask


def test_an_open_loop_does_not_come_back():
    assert OneTry().comes_back_after(an_ask(), FULL, 0.0, RNG) is None


def test_a_hint_that_is_heeded_is_slept_exactly():
    assert OpenAIPackage().comes_back_after(an_ask(), FULL, 0.0, RNG) == 1_840.0


def test_the_package_gives_up_after_its_retries():
    assert OpenAIPackage(retries=2).comes_back_after(an_ask(attempts=3), FULL, 0.0, RNG) is None


@pytest.mark.parametrize(("attempts", "most_ms"), [(1, 500), (2, 1_000), (3, 2_000), (9, 8_000)])
def test_without_a_hint_the_package_doubles_its_wait_up_to_eight_seconds(attempts, most_ms):
    client = OpenAIPackage(retries=20, heeds=0.0)
    waits = [client.comes_back_after(an_ask(attempts=attempts), FULL, 0.0, RNG) for _ in range(50)]
    assert all(0.75 * most_ms <= wait <= most_ms for wait in waits)


def test_a_client_told_that_it_is_no_use_does_not_come_back_unless_it_does_not_listen():
    no_use = Answer(taken=False, reason="deadline_unmeetable", hint_ms=1_000, worth_retrying=False)
    assert OpenAIPackage().comes_back_after(an_ask(), no_use, 0.0, RNG) is None
    assert OpenAIPackage(heeds=0.0).comes_back_after(an_ask(), no_use, 0.0, RNG) is not None


def test_the_told_share_of_asks_heeds_and_the_same_ask_always_does_the_same():
    client = OpenAIPackage(heeds=0.3)
    heeded = [client.comes_back_after(an_ask(number=n), FULL, 0.0, RNG) == 1_840.0 for n in range(2_000)]
    again = [client.comes_back_after(an_ask(number=n, attempts=2), FULL, 0.0, RNG) == 1_840.0 for n in range(2_000)]
    assert sum(heeded) / 2_000 == pytest.approx(0.3, abs=0.02)
    assert heeded == again


def test_layers_try_eighteen_times():
    tries, ask = 1, an_ask()
    while Layered().comes_back_after(ask, FULL, 0.0, RNG) is not None:
        ask.attempts += 1
        tries += 1
    assert tries == 18

"""Tests that an answer is the same whether it is computed at once, with pauses, or in several attempts."""

import contextlib
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.clock import ManualClock
from tests.support.driven import Driven
from workers.engine.backend import DecodeFailed
from workers.engine.events import Ended, Text

_FORMS = {
    "schema": {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {"type": "string"}}}},
}
_PAYLOADS = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 7},
    "hot": {"seed": -3, "temperature": 4.0, "top_p": 1.0, "top_k": 0},
    "penalties": {"seed": 5, "repeat_penalty": 1.7, "presence_penalty": 0.8, "frequency_penalty": 0.5},
    "greedy penalties": {"temperature": 0, "repeat_penalty": 1.9},
    "biased": {"seed": 2, "logit_bias": {"300": 3.0, "301": -5.0}},
    "stop string": {"seed": 7, "stop": [" zezu tanu", "zz"]},
    "grammar": {"seed": 4, "temperature": 1.5, "response_format": _FORMS["schema"]},
    "logprobs": {"seed": 7, "logprobs": 3},
    "logprobs of a grammar": {"seed": 1, "logprobs": 0, "response_format": _FORMS["schema"]},
    "characters of several tokens": {"seed": 1, "temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
}
_LENGTH = 24


def _payload(kind: str) -> dict:
    return {"prompt": "dibo kufe mala resi", "max_tokens": _LENGTH, **_PAYLOADS[kind]}


def _alone(backend, kind: str):
    """Return the end of the job that runs alone and at once, and the tokens of its answer."""
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        driven.submit("alone", _payload(kind))
        driven.run_until_idle()
        tokens = [token for event in driven.events if isinstance(event, Text) for token in event.tokens]
        return driven.ended["alone"], tuple(tokens)


def _check_equal(ended: Ended, reference: Ended) -> None:
    for each in (ended, reference):
        assert each.outcome == "succeeded"
    assert (ended.text, ended.finish_reason) == (reference.text, reference.finish_reason)
    assert ended.usage.completion_tokens == reference.usage.completion_tokens
    assert ended.usage.prompt_tokens == reference.usage.prompt_tokens
    ours, expected = ended.extra.get("logprobs", []), reference.extra.get("logprobs", [])
    assert [token for token, *_ in ours] == [token for token, *_ in expected]
    for one, other in zip(ours, expected, strict=True):
        # Batches of other shapes round differently.
        assert one[1] == pytest.approx(other[1], abs=2e-3)
        assert [number for _, number in one[2]] == pytest.approx([number for _, number in other[2]], abs=2e-3)


@pytest.mark.parametrize("kind", _PAYLOADS)
def test_an_answer_continues_after_any_of_its_tokens_as_if_it_had_not_stopped(backend, kind):
    reference, tokens = _alone(backend, kind)
    with contextlib.closing(Driven(backend)) as driven:
        for n in range(len(tokens) + 1):
            driven.submit(str(n), _payload(kind), answer=tokens[:n])
        while driven.engine.step():
            pass
        driven.engine.check_idle()
        for n in range(len(tokens) + 1):
            _check_equal(driven.ended[str(n)], reference)
        for n in range(len(tokens)):
            # The attempts before and after the token show the whole text, without a gap or a repeat.
            assert reference.text.endswith(driven.streamed(str(n)))


@pytest.mark.parametrize("kind", _PAYLOADS)
def test_a_job_that_is_paused_at_any_step_gets_its_answer_without_a_gap_or_a_repeat(backend, kind):
    reference, _ = _alone(backend, kind)
    dice = random.Random(kind)
    with contextlib.closing(Driven(backend, prefill_chunk=3)) as driven:
        for key in map(str, range(12)):
            driven.submit(key, _payload(kind))
        driven.run_with_pauses(12, dice)
        assert driven.engine.stats.pauses > 10
        for ended in driven.ended.values():
            _check_equal(ended, reference)


_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


@pytest.fixture(scope="module")
def clear_answers(backend) -> dict[tuple[str, int], Ended]:
    """Greedy answers none of whose tokens is nearly as likely as another one, so that no rounding changes them."""
    dice = random.Random(11)
    answers = {}
    for _ in range(60):
        asked = " ".join(dice.choices(_SYLLABLES, k=dice.choice([1, 6, 30]))), dice.choice([1, 5, 20])
        with contextlib.closing(Driven(backend, reuse=False)) as driven:
            driven.submit("a", {"prompt": asked[0], "max_tokens": asked[1], "temperature": 0, "logprobs": 2})
            driven.run_until_idle()
            ended = driven.ended["a"]
        if all(top[0][1] - top[1][1] > 0.01 for _, _, top in ended.extra["logprobs"]):
            answers[asked] = ended
    assert len(answers) > 20
    return answers


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), chunk=st.sampled_from([1, 7, 512]), reuse=st.booleans(), apart=st.booleans())
def test_pauses_cancels_deadlines_and_failed_steps_lose_no_cell_and_change_no_text(
    backend, clear_answers, monkeypatch, seed, chunk, reuse, apart
):
    dice, clock = random.Random(seed), ManualClock()
    decode = backend.decode

    def sometimes_failing(rows, meanwhile=None):
        clock.advance(0.01)
        if dice.random() < 0.02:
            raise DecodeFailed("planned")
        return decode(rows, meanwhile)

    asked = dice.choices(list(clear_answers), k=30)
    with (
        monkeypatch.context() as patch,
        contextlib.closing(Driven(backend, clock, prefill_chunk=chunk, reuse=reuse)) as d,
    ):
        patch.setattr(backend, "decode", sometimes_failing)
        patch.setattr(backend, "computes_apart", apart)
        for i, (prompt, n) in enumerate(asked):
            late_s = dice.choice([1e9, 1e9, 1e9, 0.05, 0.5])
            payload = {"prompt": prompt, "max_tokens": n, "temperature": 0}
            d.submit(str(i), payload, tenant=dice.choice("ab"), deadline_s=clock.monotonic() + late_s)
        while len(d.ended) < len(asked):
            d.engine.step()
            clock.advance(0.001)
            d.engine._table.check()
            assert len(d.engine._running) <= backend.slots
            for key in map(str, range(len(asked))):
                draw = dice.random()
                if draw < 0.05:
                    d.engine.pause(key)
                elif draw < 0.3:
                    d.engine.resume(key)
                elif draw < 0.302:
                    d.engine.cancel(key, drop=dice.random() < 0.5)
        d.check_empty()
    for i, each in enumerate(asked):
        ended = d.ended[str(i)]
        whole = clear_answers[each].text
        assert ended.text == whole if ended.outcome == "succeeded" else whole.startswith(ended.text)


def test_tokens_whose_text_is_held_back_are_reported_without_text(backend):
    """Every answer begins with a part of the stop string, which is so long that it is never complete."""
    with contextlib.closing(Driven(backend, resume_tokens=4)) as driven:
        driven.submit("alone", {"prompt": "dibo", "max_tokens": 22, "temperature": 0})
        driven.run_until_idle()
        text = driven.ended["alone"].text
        driven.submit("held", {"prompt": "dibo", "max_tokens": 22, "temperature": 0, "stop": [text + "never"]})
        driven.run_until_idle()
        events = [event for event in driven.events if isinstance(event, Text) and event.key == "held"]
        assert [(event.text, event.completion_tokens) for event in events[:-1]] == [("", n) for n in (4, 8, 12, 16, 20)]
        assert (events[-1].text, events[-1].is_last) == (text, True)
        assert sum((event.tokens for event in events), ()) == sum(
            (event.tokens for event in driven.events if isinstance(event, Text) and event.key == "alone"), ()
        )


def test_a_dropped_job_does_not_show_what_it_held_back(backend):
    """The attempt that continues the answer holds back the same text, and would repeat it."""
    with contextlib.closing(Driven(backend)) as driven:
        driven.submit("alone", {"prompt": "dibo", "max_tokens": 20, "temperature": 0})
        driven.run_until_idle()
        stop = driven.ended["alone"].text + "never"
        driven.submit("lost", {"prompt": "dibo", "max_tokens": 20, "temperature": 0, "stop": [stop]})
        for _ in range(6):
            driven.engine.step()
        driven.engine.cancel("lost", drop=True)
        driven.run_until_idle()
        assert (driven.streamed("lost"), driven.ended["lost"].text) == ("", "")


def test_the_usage_of_an_attempt_that_continues_says_what_it_computed_again(backend):
    reference, tokens = _alone(backend, "greedy")
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        driven.submit("on", _payload("greedy"), answer=tokens[:10])
        while driven.engine.step():
            pass
        usage = driven.ended["on"].usage
        assert usage.completion_tokens == reference.usage.completion_tokens
        assert usage.again_tokens == driven.engine.stats.recomputed_tokens == usage.prompt_tokens + 9
        assert "again_tokens" not in usage.as_dict()

"""Tests of jobs with several candidates: each is the answer of its own seed, and the prompt is computed once."""

import contextlib
import random

import pytest

from shared.candidates import read_candidates
from tests.support.driven import Driven
from workers.engine.answer.words import is_end, words_by_candidate
from workers.engine.events import Ended, JobRejected, Text

_PROMPT = "dibo kufe mala resi tanu bopa gesi"
_LENGTH, _N = 8, 3
_PAYLOADS = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 7},
    "hot": {"seed": -3, "temperature": 4.0, "top_p": 1.0, "top_k": 0},
    "stop string": {"seed": 7, "stop": ["a", "zz"]},
    "penalties": {"seed": 5, "repeat_penalty": 1.7, "presence_penalty": 0.8},
    "grammar": {"seed": 4, "temperature": 1.5, "response_format": {"type": "choice", "choice": ["dibo", "kufe ma"]}},
    "logprobs": {"seed": 9, "logprobs": 2},
    "characters of several tokens": {"seed": 1, "temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
}


def _payload(kind: str, **fields) -> dict:
    return {"prompt": _PROMPT, "max_tokens": _LENGTH, **_PAYLOADS[kind], **fields}


def _submit(driven: Driven, key: str, payload: dict, **fields) -> None:
    """Submit a job as a worker does, which is told the length of all candidates together."""
    driven.submit(key, payload | {"max_tokens": payload["n"] * payload["max_tokens"]}, **fields)


def _singles(backend, kind: str, n: int = _N) -> list[Ended]:
    """Return the ends of jobs with one answer each, with the seeds of the candidates."""
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        for i in range(n):
            driven.submit(str(i), _payload(kind, seed=_PAYLOADS[kind].get("seed", 0) + i, logprobs=2))
            driven.run_until_idle()
        return [driven.ended[str(i)] for i in range(n)]


def _check_candidates(ended: Ended, singles: list[Ended]) -> None:
    assert ended.outcome == "succeeded"
    candidates = read_candidates(ended.text, _N)
    assert [candidate.text for candidate in candidates] == [single.text for single in singles]
    assert [candidate.reason for candidate in candidates] == [single.finish_reason for single in singles]
    assert ended.usage.completion_tokens == sum(single.usage.completion_tokens for single in singles)
    for fields, single in zip(ended.extra["candidates"], singles, strict=True):
        entries = single.extra["logprobs"]
        mean = sum(entry[1] for entry in entries) / len(entries) if entries else None
        # Batches of other shapes round differently.
        assert fields.get("mean_logprob") == (None if mean is None else pytest.approx(mean, abs=1e-3))


def _words(driven: Driven, key: str) -> tuple[int, ...]:
    texts = [event for event in driven.events if isinstance(event, Text) and event.key == key]
    return tuple(word for event in texts for word in event.tokens)


@pytest.mark.parametrize("kind", _PAYLOADS)
def test_each_candidate_is_the_answer_of_its_own_seed_and_the_prompt_is_computed_once(backend, kind):
    singles = _singles(backend, kind)
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        _submit(driven, "a", _payload(kind, n=_N))
        driven.run_until_idle()
        ended, stats = driven.ended["a"], driven.engine.stats
        _check_candidates(ended, singles)
        # Every further candidate computes only the last token of the prompt again.
        assert stats.prompt_tokens == ended.usage.prompt_tokens
        assert stats.recomputed_tokens == ended.usage.again_tokens == _N - 1
        assert stats.completion_tokens == ended.usage.completion_tokens
        if kind == "logprobs":
            shown = [[entry[0] for entry in each["logprobs"]] for each in ended.extra["candidates"]]
            assert shown == [[entry[0] for entry in single.extra["logprobs"]] for single in singles]
        else:
            assert all("logprobs" not in each for each in ended.extra["candidates"])


def test_candidates_of_several_jobs_run_beside_each_other(backend):
    kinds = [kind for kind in _PAYLOADS if kind != "grammar"]
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        for kind in kinds:
            _submit(driven, kind, _payload(kind, n=_N))
        driven.run_until_idle()
        ends = dict(driven.ended)
    for kind in kinds:
        _check_candidates(ends[kind], _singles(backend, kind))


@pytest.mark.parametrize("kind", ["seeded", "stop string", "grammar", "logprobs"])
def test_a_job_continues_after_any_event_of_any_candidate_as_if_it_had_not_stopped(backend, kind):
    singles = _singles(backend, kind)
    with contextlib.closing(Driven(backend)) as driven:
        _submit(driven, "whole", _payload(kind, n=_N))
        driven.run_until_idle()
        events, text = [event for event in driven.events if isinstance(event, Text)], driven.ended["whole"].text
        for n in range(1, len(events) + 1, 4):
            words = tuple(word for event in events[:n] for word in event.tokens)
            computed = driven.engine.stats.completion_tokens
            _submit(driven, str(n), _payload(kind, n=_N), answer=words, attempt=2)
            while driven.engine.step():
                pass
            _check_candidates(driven.ended[str(n)], singles)
            # Together, the attempts show the text of each candidate without a gap or a repeat.
            assert driven.ended[str(n)].text == text
            shown = "".join(event.text for event in events[:n]) + driven.streamed(str(n))
            assert read_candidates(shown, _N) == read_candidates(text, _N)
            if kind != "logprobs":
                # Candidates that are complete are not computed again, and the others for their log probabilities.
                complete = sum(len(each) - 1 for each in words_by_candidate(words) if each and is_end(each[-1]))
                again = driven.engine.stats.completion_tokens - computed
                assert again == driven.ended[str(n)].usage.completion_tokens - complete
        driven.engine.check_idle()


@pytest.mark.parametrize("kind", ["stop string", "grammar", "logprobs"])
def test_a_job_that_is_paused_at_any_step_gets_its_candidates_without_a_gap_or_a_repeat(backend, kind):
    singles, dice = _singles(backend, kind), random.Random(kind)
    with contextlib.closing(Driven(backend, prefill_chunk=3)) as driven:
        for key in map(str, range(9)):
            _submit(driven, key, _payload(kind, n=_N))
        driven.run_with_pauses(9, dice)
        assert driven.engine.stats.pauses > 5
        for ended in driven.ended.values():
            _check_candidates(ended, singles)


def test_a_job_that_is_canceled_keeps_its_complete_candidates_and_a_part_of_those_that_were_generated(backend):
    n = backend.slots + 2
    singles = _singles(backend, "seeded", n)
    with contextlib.closing(Driven(backend)) as driven:
        _submit(driven, "a", _payload("seeded", n=n))
        while not read_candidates(driven.streamed("a"), n)[backend.slots].text:
            driven.engine.step()
        driven.engine.cancel("a")
        driven.run_until_idle()
        ended = driven.ended["a"]
        assert ended.outcome == "canceled"
        candidates = read_candidates(ended.text, n)
        assert {candidate.reason for candidate in candidates} >= {"length", ""}
        for candidate, single in zip(candidates, singles, strict=True):
            assert candidate.reason in {single.finish_reason, ""}
            is_whole = candidate.text == single.text
            assert is_whole if candidate.reason else single.text.startswith(candidate.text)


@pytest.mark.parametrize("steps", [2, 5])
def test_the_cells_of_a_job_that_ends_while_it_repeats_a_candidate_are_reused_for_what_they_hold(backend, steps):
    """Its log probabilities are computed again, and its text already ends with a later candidate."""
    (first, *_) = _singles(backend, "logprobs")
    with contextlib.closing(Driven(backend)) as driven:
        _submit(driven, "whole", _payload("logprobs", n=_N))
        driven.run_until_idle()
        words = _words(driven, "whole")
        # The last candidate had no token yet.
        ended = max(i for i, word in enumerate(words[:-1]) if is_end(word)) + 1
        _submit(driven, "again", _payload("logprobs", n=_N), answer=words[:ended], attempt=2)
        for _ in range(steps):
            driven.engine.step()
        driven.engine.cancel("again")
        while driven.engine.step():
            pass
        assert driven.ended["again"].outcome == "canceled"
        assert driven.ended["whole"].text.startswith(driven.ended["again"].text)
        driven.engine.check_idle()
        driven.submit("next", _payload("logprobs"))
        while driven.engine.step():
            pass
        assert driven.ended["next"].text == first.text


def test_sixteen_candidates_differ(backend):
    with contextlib.closing(Driven(backend)) as driven:
        _submit(driven, "a", _payload("hot", n=16))
        driven.run_until_idle()
        candidates = read_candidates(driven.ended["a"].text, 16)
        assert len({candidate.text for candidate in candidates}) == 16
        assert len(driven.ended["a"].extra["candidates"]) == 16


def test_a_job_whose_candidates_are_all_complete_ends_at_once(backend):
    with contextlib.closing(Driven(backend)) as driven:
        _submit(driven, "whole", _payload("seeded", n=_N))
        driven.run_until_idle()
        steps = driven.engine.stats.steps
        _submit(driven, "again", _payload("seeded", n=_N), answer=_words(driven, "whole"), attempt=2)
        driven.engine.step()
        assert driven.engine.stats.steps == steps
        assert driven.ended["again"].text == driven.ended["whole"].text
        assert driven.ended["again"].usage.completion_tokens == driven.ended["whole"].usage.completion_tokens


@pytest.mark.parametrize(("slots", "seconds"), [(1, 3.3), (2, 2.3), (4, 1.7)])
def test_the_sim_computes_the_prompt_of_candidates_once_and_the_answers_in_as_many_slots_as_are_free(
    a_sim, clock, slots, seconds
):
    driven = a_sim(prefill_tps=10, decode_tps=10, slots=slots)
    began = clock.monotonic()
    _submit(driven, "a", {"prompt": "one two three four five six seven eight nine ten", "max_tokens": 5, "n": 4})
    driven.run_until_idle()
    ended = driven.ended["a"]
    assert [len(candidate.text.split()) for candidate in read_candidates(ended.text, 4)] == [5] * 4
    assert ended.usage.completion_tokens == 20
    # Ten words of the prompt, and for each further candidate its last word again. The first answer begins alone.
    assert clock.monotonic() - began == pytest.approx(seconds, abs=0.1)


@pytest.mark.parametrize("n", [0, 17, 1.5, True, "2"])
def test_a_number_of_candidates_outside_its_range_is_rejected(backend, n):
    with contextlib.closing(Driven(backend)) as driven, pytest.raises(JobRejected) as rejected:
        driven.submit("a", _payload("greedy", n=n))
    assert (rejected.value.code, rejected.value.param) == ("invalid_value", "n")

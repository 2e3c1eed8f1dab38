"""Tests of jobs that resume after a pause or an earlier attempt when something goes wrong, or ends them early."""

import contextlib
from itertools import chain

import pytest

from tests.support.driven import Driven
from workers.engine.events import Text

_ANSWER = {"prompt": "kufe dibo " * 8, "max_tokens": 24, "temperature": 0}


def _reported(driven: Driven, key: str) -> tuple[int, ...]:
    """Return the tokens that the events of a job have carried."""
    return tuple(chain.from_iterable(e.tokens for e in driven.events if isinstance(e, Text) and e.key == key))


def _alone(backend, payload):
    """Return the end of a job that runs at once, and the tokens of its answer."""
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        driven.submit("alone", payload)
        driven.run_until_idle()
        return driven.ended["alone"], _reported(driven, "alone")


def test_a_paused_job_whose_copy_cannot_be_restored_is_computed_again(backend, monkeypatch):
    reference, _ = _alone(backend, _ANSWER)
    copy_cells = backend.copy_cells

    def half_a_copy(slot, limit_bytes):
        copy = copy_cells(slot, limit_bytes)
        return copy and copy[: len(copy) // 2]

    monkeypatch.setattr(backend, "copy_cells", half_a_copy)
    _pause_more_than_fit(backend, reference.text)


def _pause_more_than_fit(backend, text):
    """Pause more jobs than have cells, let them resume, and check that each has the answer `text`."""
    with contextlib.closing(Driven(backend)) as driven:
        keys = [str(i) for i in range(backend.sequences + 2)]
        for key in keys:
            driven.submit(key, _ANSWER)
            for _ in range(3):
                driven.engine.step()
            driven.engine.pause(key)
        driven.engine.step()
        for key in keys:
            assert driven.engine.resume(key)
        driven.run_until_idle()
        assert {driven.ended[key].text for key in keys} == {text}


@pytest.mark.parametrize("logprobs", [None, 1])
def test_the_events_of_a_job_that_continues_carry_only_new_tokens(backend, logprobs):
    payload = _ANSWER | {"logprobs": logprobs}
    _, tokens = _alone(backend, payload)
    with contextlib.closing(Driven(backend)) as driven:
        driven.submit("on", payload, answer=tokens[:9])
        driven.submit("canceled", payload, answer=tokens[:9])
        for _ in range(4):
            driven.engine.step()
        driven.engine.cancel("canceled")
        while driven.engine.step():
            pass
        assert tokens[:9] + _reported(driven, "on") == tokens
        assert _reported(driven, "canceled") == tokens[9:][: len(_reported(driven, "canceled"))]


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_job_that_ends_before_it_has_continued_keeps_the_answer_of_its_earlier_attempt(backend, logprobs, steps):
    payload = _ANSWER | {"logprobs": logprobs}
    reference, tokens = _alone(backend, payload)
    with contextlib.closing(Driven(backend)) as driven:
        driven.submit("on", payload, answer=tokens[:20])
        for _ in range(steps):
            driven.engine.step()
        driven.engine.cancel("on")
        while driven.engine.step():
            pass
        ended = driven.ended["on"]
        assert ended.usage.completion_tokens >= 20
        shown = b"".join(map(backend.piece, tokens[:20])).decode(errors="ignore")
        assert ended.text.startswith(shown)
        assert reference.text.startswith(ended.text)


def test_a_prompt_that_is_computed_again_after_a_pause_counts_as_read(backend):
    with contextlib.closing(Driven(backend, reuse=False, paused_bytes=0, prefill_chunk=8)) as driven:
        driven.submit("paused", _ANSWER)
        for _ in range(20):
            driven.engine.step()
        driven.engine.pause("paused")
        # Jobs that need all cells.
        largest = _ANSWER | {"max_tokens": backend.cells // backend.slots - 40}
        for i in range(backend.slots):
            driven.submit(str(i), largest)
        driven.engine.step()
        for i in range(backend.slots):
            driven.engine.cancel(str(i))
        driven.engine.resume("paused")
        driven.engine.step()
        driven.engine.cancel("paused")
        driven.run_until_idle()
        assert driven.engine.stats.recomputed_tokens > 0
        assert driven.ended["paused"].usage.unread_tokens == 0


def test_the_time_that_a_grammar_takes_is_counted_across_pauses(backend):
    payload = {
        "prompt": "dibo",
        "max_tokens": 60,
        "seed": 4,
        "response_format": {"type": "regex", "regex": "[a-c]{60}"},
    }
    with contextlib.closing(Driven(backend)) as driven:
        driven.submit("a", payload)
        for _ in range(20):
            driven.engine.step()
        driven.engine.pause("a")
        driven.engine.step()
        before_s = driven.engine._by_key["a"].grammar_cpu_s
        assert before_s > 0
        driven.engine.resume("a")
        driven.run_until_idle()
        times = [e.grammar_cpu_s for e in driven.events if isinstance(e, Text)]
        assert times == sorted(times)
        assert driven.ended["a"].grammar_cpu_s > before_s


@pytest.mark.parametrize("token", [-1, 1 << 31])
def test_a_job_with_tokens_that_the_model_does_not_have_is_not_prepared(driven, token):
    with pytest.raises(ValueError, match=f"token {token}, but the model has only"):
        driven.submit("bad", _ANSWER, answer=(5, token))


def test_a_paused_job_for_whose_copy_there_is_no_memory_is_computed_again(backend, monkeypatch):
    reference, _ = _alone(backend, _ANSWER)

    def no_memory(slot, limit_bytes):
        raise MemoryError

    monkeypatch.setattr(backend, "copy_cells", no_memory)
    _pause_more_than_fit(backend, reference.text)

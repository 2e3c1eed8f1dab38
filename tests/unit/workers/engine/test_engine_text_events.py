"""Tests that the text of a step is told while a device computes the next one, and that nothing else depends on it."""

import contextlib
from types import SimpleNamespace

import llama_cpp
import pytest

from tests.support.driven import Driven
from workers.engine.events import Ended, Text

#: Jobs whose text may wait, and jobs whose text must be known before the next step.
WAITING = {"greedy": {"temperature": 0}, "default": {"seed": 5}, "penalties": {"seed": 6, "repeat_penalty": 1.2}}
AT_ONCE = {
    "stops": {"seed": 3, "stop": ["e", "no stop"]},
    "late stop": {"seed": 4, "stop": ["no such text"]},
    "candidates": {"seed": 7, "n": 3},
}
OTHERS = {
    "logprobs": {"seed": 8, "logprobs": 2},
    "grammar": {"seed": 9, "response_format": {"type": "json_object"}},
    "bytes": {"seed": 10, "temperature": 5, "top_k": 0},
    "short": {"seed": 11, "max_tokens": 1},
}


@pytest.fixture
def device(backend, monkeypatch):
    """The backend as one whose model is on a device, and what happens in order."""
    happened, decode, wait = [], llama_cpp.llama_cpp.llama_decode, llama_cpp.llama_cpp.llama_synchronize

    def note_decode(ctx, batch):
        happened.append("begun")
        return decode(ctx, batch)

    def note_wait(ctx):
        wait(ctx)
        happened.append("computed")

    monkeypatch.setattr(backend, "computes_apart", True)
    monkeypatch.setattr(llama_cpp.llama_cpp, "llama_decode", note_decode)
    monkeypatch.setattr(llama_cpp.llama_cpp, "llama_synchronize", note_wait)
    return SimpleNamespace(backend=backend, happened=happened)


def answers(backend, jobs, happened=None, **settings):
    with contextlib.closing(Driven(backend, **settings)) as driven:
        if happened is not None:
            emit = driven.events.append
            driven.engine._emit = driven.engine._texts._emit = lambda event: (happened.append(event), emit(event))
        for key, fields in jobs.items():
            driven.submit(key, {"prompt": f"dibo {key}", "max_tokens": 14, **fields})
        driven.run_until_idle()
        return driven


def test_a_text_is_told_while_the_device_computes_the_next_step(device):
    answers(device.backend, WAITING, device.happened, reuse=False)
    before = "computed"
    for at, event in enumerate(device.happened):
        before = event if isinstance(event, str) else before
        if isinstance(event, Text) and before == "computed":
            # The last text of an answer is told with its end.
            following = [
                each for each in device.happened[at + 1 :] if not isinstance(each, str) and each.key == event.key
            ]
            assert [type(each) for each in following] == [Ended]
    assert sum(isinstance(event, Text) for event in device.happened) > 10


def test_a_text_that_may_end_its_answer_is_told_at_once(device):
    answers(device.backend, AT_ONCE, device.happened, reuse=False)
    before = ""
    for event in device.happened:
        before = event if isinstance(event, str) else before
        assert isinstance(event, str) or before == "computed"


def test_answers_are_the_same_whether_their_texts_wait_or_not(backend, monkeypatch):
    found = []
    for apart in (False, True):
        monkeypatch.setattr(backend, "computes_apart", apart)
        driven = answers(backend, WAITING | AT_ONCE | OTHERS, reuse=False)
        found.append({key: (ended.text, ended.finish_reason, ended.extra) for key, ended in driven.ended.items()})
        for key, ended in driven.ended.items():
            texts = [event for event in driven.events if isinstance(event, Text) and event.key == key]
            assert "".join(event.text for event in texts) == ended.text
            # The words of candidates include those for their ends.
            told = sum(len(event.tokens) for event in texts)
            assert key in ("candidates", "stops") or 0 <= ended.usage.completion_tokens - told < 32
            assert all(
                event.completion_tokens == sum(len(each.tokens) for each in texts[: at + 1])
                for at, event in enumerate(texts)
            )
    assert found[0] == found[1]


@pytest.mark.parametrize("way", ["cancel", "drop", "pause", "recall", "expire", "stop"])
def test_what_ends_or_pauses_an_answer_finds_all_of_its_text_told(device, clock, way):
    driven = Driven(device.backend, clock, reuse=False)
    with contextlib.closing(driven):
        driven.submit("a", {"prompt": "dibo", "temperature": 0, "max_tokens": 40}, deadline_s=clock.monotonic() + 100)
        for _ in range(6):
            driven.engine.step()
        generated = driven.engine.stats.completion_tokens
        assert sum(len(event.tokens) for event in driven.events) < generated
        if way == "expire":
            clock.advance(200)
        elif way == "stop":
            driven.engine.drop_all()
        elif way == "recall":
            driven.engine.pause("a")
            driven.engine.recall()
        else:
            {
                "cancel": driven.engine.cancel,
                "drop": lambda key: driven.engine.cancel(key, drop=True),
                "pause": driven.engine.pause,
            }[way]("a")
        driven.engine.step()
        texts = [event for event in driven.events if isinstance(event, Text)]
        assert sum(len(event.tokens) for event in texts) == generated
        if way != "pause":
            assert driven.ended["a"].usage.completion_tokens == generated
            assert driven.streamed("a") == driven.ended["a"].text


def test_an_answer_whose_bytes_cannot_be_read_fails_alone(device, monkeypatch):
    alone = answers(device.backend, {"sound": {"temperature": 0}}, reuse=False)
    with contextlib.closing(Driven(device.backend, reuse=False)) as driven:
        for key in ("sound", "faulty"):
            driven.submit(key, {"prompt": f"dibo {key}", "temperature": 0, "max_tokens": 14})
        for _ in range(3):
            driven.engine.step()
        faulty = next(each for each in driven.engine._running.values() if each.key == "faulty")

        def fail(_piece):
            raise ValueError("no such piece")

        monkeypatch.setattr(faulty.detokenizer, "feed", fail)
        driven.run_until_idle()
    assert (driven.ended["faulty"].outcome, driven.ended["faulty"].code) == ("failed", "engine_error")
    assert driven.ended["sound"].text == alone.ended["sound"].text

"""Tests of candidates that are generated side by side in slots that no job wants: what they cost, and who gives way."""

import contextlib
import random

import pytest

from shared.candidates import read_candidates
from tests.support.driven import Driven
from workers.engine.backend import DecodeFailed
from workers.engine.events import JobRejected, Text
from workers.engine.running.spare_slots import QUIET_STEPS

_PROMPT = "dibo kufe mala resi tanu bopa gesi " * 12
_LENGTH = 10


def _submit(driven: Driven, key: str, n: int, *, tenant: str = "blue", **fields) -> None:
    """Submit a job as a worker does, which is told the length of all candidates together."""
    driven.submit(key, {"prompt": _PROMPT, "max_tokens": n * _LENGTH, "seed": 5, "n": n} | fields, tenant=tenant)


def _single_texts(backend, n: int) -> list[str]:
    """Return the answers to jobs with one answer each, with the seeds of the candidates."""
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        for i in range(n):
            driven.submit(str(i), {"prompt": _PROMPT, "max_tokens": _LENGTH, "seed": 5 + i})
            driven.run_until_idle()
        return [driven.ended[str(i)].text for i in range(n)]


def _texts(driven: Driven, key: str, n: int) -> list[str]:
    return [candidate.text for candidate in read_candidates(driven.ended[key].text, n)]


def _slots_of(driven: Driven, key: str) -> int:
    return sum(sequence.key == key for sequence in driven.engine._running.values())


def test_eight_candidates_compute_the_prompt_once_and_take_as_many_steps_as_one_answer(backend):
    singles = _single_texts(backend, 8)
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        _submit(driven, "a", 8)
        driven.run_until_idle()
        assert _texts(driven, "a", 8) == singles
        stats, usage = driven.engine.stats, driven.ended["a"].usage
        assert stats.prompt_tokens == usage.prompt_tokens > 80
        # Each further candidate computes the last token of the prompt again.
        assert stats.recomputed_tokens == usage.again_tokens == 7
        assert usage.completion_tokens == 8 * _LENGTH
        # The prompt takes one step, and slots are lent after further ones.
        assert stats.steps <= _LENGTH + QUIET_STEPS + 1


def test_a_job_that_comes_gets_a_lent_slot_in_the_same_step(backend):
    singles = _single_texts(backend, 8)
    with contextlib.closing(Driven(backend)) as driven:
        _submit(driven, "many", 8)
        while _slots_of(driven, "many") < backend.slots:
            driven.engine.step()
        assert driven.engine.free_capacity().slots == backend.slots - 1
        for i in range(backend.slots - 1):
            driven.submit(f"other {i}", {"prompt": f"kufe {i}", "max_tokens": 3, "seed": i}, tenant="red")
            driven.engine.step()
            assert _slots_of(driven, f"other {i}") == 1 or f"other {i}" in driven.ended
            driven.engine._table.check()
        driven.run_until_idle()
        assert _texts(driven, "many", 8) == singles
        # The candidates' computed tokens are not lost: a split cache copies it to the host's memory.
        ways = driven.engine.stats.ways
        assert ways["recomputed"] == 0 < ways["kept"] + ways["copied"] == driven.engine.stats.pauses


def test_a_slot_is_not_lent_in_the_step_in_which_it_becomes_free(backend):
    with contextlib.closing(Driven(backend)) as driven:
        for i in range(backend.slots - 1):
            driven.submit(str(i), {"prompt": "kufe", "max_tokens": 2 + i, "ignore_eos": True}, tenant="red")
        _submit(driven, "many", 8, max_tokens=8 * 30)
        before = 0
        while len(driven.ended) < backend.slots - 1:
            ended = len(driven.ended)
            driven.engine.step()
            if len(driven.ended) > ended:
                before = _slots_of(driven, "many")
                driven.submit(f"next {ended}", {"prompt": "kufe", "max_tokens": 9}, tenant="red")
                driven.engine.step()
                assert _slots_of(driven, "many") <= before
        assert driven.engine.stats.pauses == 0


def test_jobs_with_candidates_share_the_free_slots(backend):
    with contextlib.closing(Driven(backend)) as driven:
        for key in "abc":
            _submit(driven, key, 16)
        for _ in range(QUIET_STEPS + 4):
            driven.engine.step()
        assert sorted(_slots_of(driven, key) for key in "abc") == [2, 3, 3]
        driven.run_until_idle()
        assert [len(set(_texts(driven, key, 16))) for key in "abc"] == [16, 16, 16]


def test_a_paused_job_gives_back_all_its_slots_and_its_candidates_continue(backend):
    singles = _single_texts(backend, 8)
    with contextlib.closing(Driven(backend)) as driven:
        _submit(driven, "a", 8)
        while _slots_of(driven, "a") < backend.slots:
            driven.engine.step()
        assert driven.engine.pause("a")
        driven.engine.step()
        assert _slots_of(driven, "a") == 0
        assert driven.engine.free_capacity().slots == backend.slots
        assert driven.engine.resume("a")
        driven.run_until_idle()
        assert _texts(driven, "a", 8) == singles


def test_each_of_several_prompts_is_computed_once_and_answered_as_if_it_were_alone(backend):
    prompts = [_PROMPT, "kufe " * 30, _PROMPT[:120] + "tanu", backend.tokenize("mala resi").tolist()]
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        for prompt in prompts:
            for i in range(2):
                key = f"{prompts.index(prompt)} {i}"
                driven.submit(key, {"prompts": [prompt], "max_tokens": _LENGTH, "seed": 5 + i})
                driven.run_until_idle()
        alone = {key: (ended.text, ended.usage) for key, ended in driven.ended.items()}
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        driven.submit("all", {"prompts": prompts, "n": 8, "max_tokens": 8 * _LENGTH, "seed": 5})
        driven.run_until_idle()
        usage, stats = driven.ended["all"].usage, driven.engine.stats
        assert _texts(driven, "all", 8) == [text for text, _ in alone.values()]
        assert usage.prompt_tokens == sum(alone[f"{number} 0"][1].prompt_tokens for number in range(4))
        assert stats.prompt_tokens == usage.prompt_tokens
        # The second candidate of each prompt computes its last token again.
        assert stats.recomputed_tokens == usage.again_tokens == 4
        assert (usage.cached_tokens, usage.unread_tokens) == (0, 0)


@pytest.mark.parametrize("steps", [3, 9, 14])
def test_a_job_with_several_prompts_continues_elsewhere(backend, steps):
    job = {"prompts": [_PROMPT, "kufe " * 30, "mala"], "n": 6, "max_tokens": 6 * _LENGTH, "seed": 5}
    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        driven.submit("whole", job)
        driven.run_until_idle()
        driven.submit("first", job)
        for _ in range(steps):
            driven.engine.step()
        events = [event for event in driven.events if isinstance(event, Text) and event.key == "first"]
        words = tuple(word for event in events for word in event.tokens)
        driven.engine.drop_all()
        driven.submit("second", job, answer=words, attempt=2)
        while driven.engine.step():
            pass
        assert _texts(driven, "second", 6) == _texts(driven, "whole", 6)
        shown = driven.streamed("first") + driven.streamed("second")
        assert [candidate.text for candidate in read_candidates(shown, 6)] == _texts(driven, "whole", 6)
        driven.engine.check_idle()


def test_a_worker_with_one_slot_answers_several_prompts_in_turn(a_sim):
    driven = a_sim(slots=1, decode_tps=100)
    driven.submit("a", {"prompts": ["one two", "three", [4, 5, 6]], "max_tokens": 3 * 4, "n": 3})
    driven.run_until_idle()
    assert [len(text.split()) for text in _texts(driven, "a", 3)] == [4] * 3
    assert driven.ended["a"].usage.prompt_tokens == 6
    assert driven.engine.stats.prompt_tokens == 6


@pytest.mark.parametrize("prompts", [[], ["kufe", 5], [["a"]], [[-1]], [[1 << 30]], ["kufe " * 9000] * 2])
def test_prompts_that_cannot_be_answered_are_rejected(backend, prompts):
    with contextlib.closing(Driven(backend)) as driven, pytest.raises(JobRejected) as rejected:
        driven.submit("a", {"prompts": prompts, "max_tokens": 2 * 4, "n": 2})
    assert rejected.value.param == "prompt"


def test_candidates_for_which_no_cells_are_free_run_in_turn(a_sim):
    driven = a_sim(slots=4, cells=100, decode_tps=100)
    driven.submit("a", {"prompt": "one two three four", "max_tokens": 4 * 40, "n": 4})
    most = 0
    while driven.engine.step():
        most = max(most, _slots_of(driven, "a"))
        driven.engine._table.check()
    # Of 100 cells, each answer needs 44.
    assert most == 2
    assert [len(text.split()) for text in _texts(driven, "a", 4)] == [40] * 4
    driven.check_empty()


def test_paused_jobs_keep_their_cells_although_slots_are_lent(backend):
    with contextlib.closing(Driven(backend)) as driven:
        length = backend.cells // backend.slots - 200
        driven.submit("paused", {"prompt": _PROMPT, "max_tokens": length, "ignore_eos": True}, tenant="red")
        for _ in range(5):
            driven.engine.step()
        driven.engine.pause("paused")
        _submit(driven, "many", 16)
        while "many" not in driven.ended:
            driven.engine.step()
        driven.engine.resume("paused")
        driven.engine.step()
        assert driven.engine.stats.ways["kept"] == 1
        driven.engine.cancel("paused")
        driven.run_until_idle()


def test_a_candidate_whose_sampler_fails_ends_its_whole_job_and_no_other(backend, monkeypatch):
    sample, failing = backend.sample, set()

    def sample_or_fail(row, known=None):
        if row.slot in failing:
            raise RuntimeError("no")
        return sample(row, known)

    monkeypatch.setattr(backend, "sample", sample_or_fail)
    with contextlib.closing(Driven(backend)) as driven:
        driven.submit("other", {"prompt": "kufe", "max_tokens": 40, "temperature": 0}, tenant="red")
        _submit(driven, "many", 8)
        while _slots_of(driven, "many") < backend.slots - 1:
            driven.engine.step()
        failing.add([slot for slot, each in driven.engine._running.items() if each.key == "many"][3])
        driven.engine.step()
        failing.clear()
        driven.run_until_idle()
        assert (driven.ended["many"].outcome, driven.ended["many"].code) == ("failed", "engine_error")
        assert driven.ended["other"].outcome == "succeeded"


class RandomUse:
    """Submits, pauses, resumes and cancels jobs of an engine at random, and makes some of its steps fail."""

    def __init__(self, driven: Driven, dice: random.Random) -> None:
        self._driven, self._dice = driven, dice
        #: How many candidates each job has.
        self.sizes: dict[str, int] = {}
        #: How many of them answer each prompt of the job.
        self.answers_each: dict[str, int] = {}
        self.canceled: set[str] = set()
        self._paused: set[str] = set()

    def submit(self, key: str) -> None:
        """Perhaps submit a job, as a worker does that has claimed it for what is free."""
        capacity = self._driven.engine.free_capacity()
        if capacity.slots and capacity.cells > 700 and self._dice.random() < 0.3:
            self.sizes[key] = n = self._dice.choice([1, 2, 8, 16])
            several = {"prompts": [_PROMPT] * 2} if n > 1 and self._dice.random() < 0.3 else {}
            self.answers_each[key] = n // 2 if several else n
            _submit(self._driven, key, n, tenant=self._dice.choice(["blue", "red"]), **several)

    def disturb(self) -> None:
        """Pause, resume or cancel some jobs."""
        engine = self._driven.engine
        for key in sorted(set(self.sizes) - set(self._driven.ended)):
            action = self._dice.random()
            if action < 0.05 and engine.pause(key):
                self._paused.add(key)
            elif action < 0.25 and key in self._paused and engine.resume(key, if_free=True):
                self._paused.discard(key)
            elif action < 0.27:
                engine.cancel(key)
                self.canceled.add(key)

    def finish(self) -> None:
        """Resume all paused jobs, and step until all jobs have ended."""
        for key in sorted(self._paused - set(self._driven.ended)):
            while key not in self._driven.ended and not self._driven.engine.resume(key, if_free=True):
                self._driven.engine.step()
        self._driven.run_until_idle()


@pytest.mark.parametrize("seed", range(6))
def test_free_kept_and_used_cells_are_all_cells_whatever_interrupts_the_candidates(backend, monkeypatch, seed):
    dice, decode, singles = random.Random(seed), backend.decode, _single_texts(backend, 16)

    def decode_or_fail(rows, meanwhile=None):
        if len(rows) > 1 and dice.random() < 0.1:
            raise DecodeFailed("at random")
        return decode(rows, meanwhile)

    monkeypatch.setattr(backend, "decode", decode_or_fail)
    monkeypatch.setattr(backend, "computes_apart", seed % 2 == 0)
    with contextlib.closing(Driven(backend, paused_bytes=dice.choice([0, 1 << 20, 1 << 30]))) as driven:
        use = RandomUse(driven, dice)
        for turn in range(160):
            if turn < 120:
                use.submit(str(turn))
            use.disturb()
            driven.engine.step()
            driven.engine._table.check()
        use.finish()
        assert len(driven.ended) == len(use.sizes) > 10
        for key, ended in driven.ended.items():
            if ended.outcome == "succeeded":
                each = use.answers_each[key]
                assert _texts(driven, key, use.sizes[key]) == singles[:each] * (use.sizes[key] // each)
            else:
                assert key in use.canceled

"""Tests of LoRA adapters: each answer is the one that llama.cpp alone gives with the same adapter, beside others."""

import contextlib
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import llama_cpp
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from shared.clock import ManualClock
from shared.errors import ModelError
from shared.jobs.adapter_list import Adapter
from shared.settings.settings import load
from tests.support.driven import Driven
from tests.support.examples import examples
from tests.support.lora import write_lora
from workers.demo.random_gguf import write_random_model
from workers.engine.adapter_turns import TURN_S
from workers.engine.llama.backend import LlamaBackend, load_backend

NAMES = ("", "one", "two")
SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]


def _prompts() -> list[str]:
    dice = random.Random(7)
    begin = " ".join("".join(dice.choices(SYLLABLES, k=2)) for _ in range(30))
    return [begin + " " + "".join(dice.choices(SYLLABLES, k=3)) for _ in range(4)] + ["ba", "du ki"]


PROMPTS, LENGTH = _prompts(), 12


@pytest.fixture(scope="module")
def adapters(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    write_lora(folder / "one.gguf", model_path, seed=1)
    write_lora(folder / "two.gguf", model_path, seed=2, rank=8)
    scales = {"one": 1.0, "two": 0.75}
    return [Adapter(name, folder / f"{name}.gguf", name, scale) for name, scale in scales.items()]


@pytest.fixture(scope="module", params=[4096, 8192], ids=["shared", "split"])
def backend(model_path: Path, adapters: list[Adapter], request: pytest.FixtureRequest) -> Iterator[LlamaBackend]:
    settings = load({}, None, device="cpu", max_batch_size=4, kv_cells=request.param, threads=1)
    backend = load_backend(settings, model_path, adapters=adapters)
    assert isinstance(backend, LlamaBackend)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def reference(model_path: Path, adapters: list[Adapter]) -> dict[tuple[str, str], str]:
    """The text that `llama_cpp.Llama` generates, by the adapter and the prompt."""
    found = {}
    for adapter in (None, *adapters):
        given = {} if adapter is None else {"lora_path": str(adapter.path), "lora_scale": adapter.scale}
        llama = llama_cpp.Llama(str(model_path), n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False, **given)
        with contextlib.closing(llama):
            for prompt in PROMPTS:
                text = llama(prompt, max_tokens=LENGTH, temperature=0)["choices"][0]["text"]
                found["" if adapter is None else adapter.name, prompt] = text
    return found


def _ask(driven: Driven, key: str, adapter: str, prompt: str, tenant: str = "blue") -> None:
    payload = {"prompt": prompt, "max_tokens": LENGTH, "temperature": 0}
    driven.submit(key, payload, tenant=tenant, adapter=adapter)


def _finish(driven: Driven, clock: ManualClock, step_s: float) -> None:
    while driven.engine.step():
        clock.advance(step_s)


def test_the_adapters_change_the_answers(reference):
    assert len({reference[name, PROMPTS[0]] for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("step_s", [0.0, TURN_S / 2, 2 * TURN_S])
def test_answers_of_the_model_and_its_adapters_side_by_side_are_those_of_each_alone(backend, reference, step_s):
    clock = ManualClock()
    with contextlib.closing(Driven(backend, clock)) as driven:
        asked = [(name, prompt) for prompt in PROMPTS for name in NAMES]
        for number, (name, prompt) in enumerate(asked):
            _ask(driven, str(number), name, prompt)
        _finish(driven, clock, step_s)
        assert [driven.ended[str(number)].text for number in range(len(asked))] == [reference[each] for each in asked]


def test_a_beginning_that_one_adapter_has_computed_is_computed_again_for_another(backend, reference):
    with contextlib.closing(Driven(backend)) as driven:
        reused = {}
        for number, name in enumerate(["one", "", "two", "one", "", "two"]):
            _ask(driven, str(number), name, PROMPTS[number % 2])
            driven.run_until_idle()
            ended = driven.ended[str(number)]
            assert ended.text == reference[name, PROMPTS[number % 2]]
            reused.setdefault(name, []).append(ended.usage.cached_tokens)
    # The second job of each adapter begins as the first one did.
    assert all(first == 0 and second >= 16 for first, second in reused.values()), reused


def test_a_call_never_has_rows_of_two_adapters(backend, monkeypatch):
    seen, set_for = [], backend._adapters.set_for

    def noted(ctx: int, slots: list[int]) -> None:
        seen.append({backend._adapters._by_slot[slot] for slot in slots})
        set_for(ctx, slots)

    monkeypatch.setattr(backend._adapters, "set_for", noted)
    clock = ManualClock()
    with contextlib.closing(Driven(backend, clock)) as driven:
        for number, name in enumerate(("one", "two", "", "two")):
            _ask(driven, str(number), name, PROMPTS[number])
        _finish(driven, clock, TURN_S / 3)
    assert all(len(names) == 1 for names in seen)
    changes = sum(before != after for before, after in pairwise(seen))
    assert {name for names in seen for name in names} == set(NAMES)
    assert changes >= 6


def test_a_short_answer_of_one_adapter_ends_while_long_ones_of_another_run(backend):
    clock = ManualClock()
    with contextlib.closing(Driven(backend, clock)) as driven:
        for number in range(3):
            driven.submit(str(number), {"prompt": PROMPTS[number], "max_tokens": 200, "temperature": 0}, adapter="one")
        for _ in range(5):
            driven.engine.step()
        _ask(driven, "two", "two", PROMPTS[4])
        while "two" not in driven.ended:
            driven.engine.step()
            clock.advance(TURN_S / 5)
        assert set(driven.ended) == {"two"}


@settings_of_hypothesis(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**6))
def test_no_beginning_is_shared_by_adapters_whatever_is_paused_canceled_and_reused(backend, reference, seed):
    dice, clock = random.Random(seed), ManualClock()
    jobs = {str(i): (dice.choice(NAMES), dice.choice(PROMPTS), dice.choice("ab")) for i in range(14)}
    with contextlib.closing(Driven(backend, clock, prefill_chunk=dice.choice([7, 512]))) as driven:
        for key, (name, prompt, tenant) in jobs.items():
            _ask(driven, key, name, prompt, tenant)
            for _ in range(dice.randint(0, 9)):
                driven.engine.step()
                clock.advance(TURN_S * dice.random())
            if dice.random() < 0.2:
                driven.engine.cancel(key)
        driven.run_with_pauses(len(jobs), dice)
        for key, ended in driven.ended.items():
            whole = reference[jobs[key][:2]]
            assert ended.text == whole if ended.outcome == "succeeded" else whole.startswith(ended.text)


def _fault(model_path: Path, path: Path) -> str:
    settings = load({}, None, device="cpu", max_batch_size=1, kv_cells=512, threads=1)
    with pytest.raises(ModelError) as caught:
        load_backend(settings, model_path, adapters=[Adapter("formal", path, f"formal={path}")])
    assert str(caught.value).startswith(f"PENSTOCK_ADAPTERS: adapter 'formal' ('formal={path}')")
    return str(caught.value)


def test_a_file_that_is_no_adapter_of_the_model_is_named_with_the_reason(model_path, tmp_path):
    assert "is not a GGUF file" in _fault(model_path, Path(__file__))
    assert "cannot be read" in _fault(model_path, tmp_path / "missing.gguf")
    assert "is no LoRA adapter" in _fault(model_path, model_path)
    other = write_lora(tmp_path / "o.gguf", model_path, seed=1, architecture="qwen3")
    assert "of the architecture 'qwen3'" in _fault(model_path, other)
    wide = tmp_path / "wide.gguf"
    write_random_model(wide, n_embd=128)
    assert "other sizes" in _fault(model_path, write_lora(tmp_path / "w.gguf", wide, seed=1))
    deep = tmp_path / "deep.gguf"
    write_random_model(deep, n_layer=3)
    assert "does not have" in _fault(model_path, write_lora(tmp_path / "d.gguf", deep, seed=1))
    huge = write_lora(tmp_path / "h.gguf", model_path, seed=1, rank=1024)
    assert "more than the whole model" in _fault(model_path, huge)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(write_lora(tmp_path / "c.gguf", model_path, seed=1).read_bytes()[:-5000])
    assert "could not be loaded" in _fault(model_path, cut)

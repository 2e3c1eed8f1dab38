"""Tests that tokens are chosen as llama.cpp's chain of samplers does, and that rows do not affect one another."""

import contextlib
import ctypes
import math
import os
import random

import llama_cpp
import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from tests.support.driven import Driven
from workers.engine.choosing.adjusted import PENALTY_LAST_N, Adjustments, undo
from workers.engine.choosing.chooser import Choice, Chooser, NothingToChoose, Row, _likeliest, _rules
from workers.engine.choosing.draw import weights_of
from workers.engine.choosing.largest import MAX_K, Finder, largest_in, load_library
from workers.engine.events import JobSpec
from workers.engine.sampling import Sampling, is_greedy

#: Vocabularies around the length of a block, and one as large as that of a small model.
SIZES = [1, 2, 40, 255, 256, 257, 1_000, 32_001]
INF, NAN = math.inf, math.nan
KINDS = {
    "random": lambda dice, n: dice.normal(0, 3, n),
    "flat": lambda _, n: np.full(n, 1.5),
    "ties": lambda dice, n: np.round(dice.normal(0, 2, n)),
    "mostly impossible": lambda dice, n: np.where(dice.random(n) < 0.9, -INF, dice.normal(0, 3, n)),
    "some not numbers": lambda dice, n: np.where(dice.random(n) < 0.3, NAN, dice.normal(0, 3, n)),
    "one number": lambda dice, n: np.where(np.arange(n) == dice.integers(n), 2.0, -INF),
    "rising": lambda _, n: np.linspace(-20, 20, n),
    "far apart": lambda dice, n: dice.normal(0, 1_000, n),
}
END_TOKENS = frozenset({0})
#: `make test-choosing` runs 10,000.
STEPS = int(os.environ.get("CHOOSING_STEPS", "600"))


def some_logits(dice, kind, n, rows):
    return np.ascontiguousarray([KINDS[kind](dice, n) for _ in range(rows)], np.float32)


def addresses(logits):
    rows, n = logits.shape
    return (logits.ctypes.data + 4 * n * np.arange(rows)).astype(np.uint64)


def some_sampling(dice, n):
    """Return settings that are random, with the defaults and the extremes among them."""
    tokens = tuple((dice.randrange(n), dice.choice([-100.0, -1.0, 0.5, 100.0])) for _ in range(dice.choice([0, 0, 3])))
    penalties = {"repeat_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": -0.2}
    return Sampling(
        temperature=dice.choice([0.0, 0.01, 0.8, 0.8, 1.0, 5.0]),
        top_k=dice.choice([0, 1, 3, 40, 40, MAX_K, MAX_K + 1, 1_000_000]),
        top_p=dice.choice([0.0, 0.3, 0.95, 0.95, 1.0]),
        min_p=dice.choice([0.0, 0.05, 0.05, 0.9, 1.0]),
        logit_bias=tokens,
        min_tokens=dice.choice([0, 0, 5]),
        seed=dice.randrange(1 << 64),
        **(penalties if dice.random() < 0.3 else {}),
    )


def a_choice(sampling, recent=()):
    adjustments = Adjustments(sampling, END_TOKENS)
    for token in recent:
        adjustments.accept(token)
    return Choice(sampling, adjustments, sampling.seed)


def shares(weights):
    """Return the probabilities that are not negligible."""
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items() if weight / total > 1e-12}


def ours(logits, choice, position=0):
    """Return the probability of each token that can be chosen."""
    row = np.array(logits, np.float32)
    k, sampling = choice.k, choice.sampling
    change = choice.adjustments.apply(row, position)
    if 0 < k <= MAX_K:
        ids, values, counts = Finder(1, load_library()).find(
            addresses(row[None]), np.array([min(k, len(row))], np.int32), len(row)
        )
        places, total = ids[0, : counts[0]], None
        values = values[:, : counts[0]]
    else:
        places, total = _likeliest(row, k, sampling)
        values = row[places][None]
    undo([change])
    if not len(places):
        return {}
    if is_greedy(sampling):
        return {int(places[0]): 1.0}
    (weights,) = weights_of(values, _rules([Row(0, choice, position)])[0], total)
    return shares(dict(zip(places.tolist(), weights.tolist(), strict=True)))


def theirs(logits, choice, recent, position=0):
    """Return what llama.cpp's chain leaves of the logits, as probabilities. NaN is impossible for it too."""
    sampling, row = choice.sampling, np.nan_to_num(np.array(logits, np.float32), nan=-INF, posinf=INF, neginf=-INF)
    if position < sampling.min_tokens:
        row[sorted(END_TOKENS)] = -INF
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    if sampling.logit_bias:
        biases = (lib.llama_logit_bias * len(sampling.logit_bias))(*sampling.logit_bias)
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_logit_bias(len(row), len(biases), biases))
    if sampling.penalizes:
        repeat, frequency, presence = sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty
        lib.llama_sampler_chain_add(
            chain, lib.llama_sampler_init_penalties(len(row), PENALTY_LAST_N, repeat, frequency, presence)
        )
    if is_greedy(sampling):
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
    else:
        for part in (
            lib.llama_sampler_init_top_k(sampling.top_k),
            lib.llama_sampler_init_top_p(sampling.top_p, 1),
            lib.llama_sampler_init_min_p(sampling.min_p, 1),
            lib.llama_sampler_init_temp(sampling.temperature),
        ):
            lib.llama_sampler_chain_add(chain, part)
    for token in recent:
        lib.llama_sampler_accept(chain, token)
    candidates = np.empty(len(row), np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    candidates["id"], candidates["logit"], candidates["p"] = np.arange(len(row)), row, 0.0
    array = lib.llama_token_data_array(
        data=candidates.ctypes.data_as(lib.llama_token_data_p), size=len(row), selected=-1, sorted=False
    )
    lib.llama_sampler_apply(chain, ctypes.byref(array))
    left = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
    if is_greedy(sampling):
        left = [left[array.selected]]
    lib.llama_sampler_free(chain)
    largest = max(logit for _, logit in left)
    weights = {token: math.exp(logit - largest) for token, logit in left if logit > -INF}
    return shares(weights)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_probabilities_are_those_of_llama_cpps_chain(kind, n):
    dice, numbers = random.Random(f"{kind} {n}"), np.random.default_rng(n)
    for _ in range(12):
        (logits,) = some_logits(numbers, kind, n, 1)
        sampling = some_sampling(dice, n)
        recent = [dice.randrange(n) for _ in range(dice.choice([0, 5, 80]))]
        choice = a_choice(sampling, recent)
        if n == 1 and sampling.min_tokens:
            continue  # The only token may not be chosen, and llama.cpp chooses it all the same.
        mine, other = ours(logits, choice), theirs(logits, choice, recent)
        if not mine:
            # The only possible token is one that may not end the answer yet.
            assert not np.isfinite(logits[1 if sampling.min_tokens else 0 :]).any()
            continue
        # llama.cpp adds up in 32-bit floats, so a token at the very edge of top-p may be kept by one of the two. Of
        # equal logits it keeps any.
        likely = sorted(mine.values(), reverse=True), sorted(other.values(), reverse=True)
        assert abs(len(likely[0]) - len(likely[1])) <= max(1, len(likely[1]) // 200), sampling
        if len(likely[0]) == len(likely[1]):
            # It also divides the logits in 32-bit floats.
            hottest = float(np.abs(logits[np.isfinite(logits)]).max()) + 200
            tolerance = 2e-6 + 2e-7 * hottest / max(sampling.temperature, 1e-3)
            assert likely[0] == pytest.approx(likely[1], abs=tolerance), sampling
            if kind not in ("flat", "ties"):
                assert set(mine) == set(other), sampling


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_ways_in_c_in_threads_and_in_numpy_find_the_same(kind, n):
    if (library := load_library()) is None:
        pytest.skip("the package was built without a compiler")
    logits = some_logits(np.random.default_rng(n), kind, n, 9)
    if kind == "random":
        logits[0, : n // 2] = INF
    ks = np.array([min(k, n) for k in (1, 2, 40, 128, 7, 100, 3, 1, 64)], np.int32)
    found = [
        Finder(threads, way).find(addresses(logits), ks, n) for threads, way in ((1, library), (3, library), (1, None))
    ]
    for other in found[1:]:
        for mine, its in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(mine, its)
    for row, k, count, values in zip(logits, ks, found[0].counts, found[0].values, strict=True):
        numbers = np.sort(row[row > -INF])[::-1][:k]
        assert count == len(numbers)
        np.testing.assert_array_equal(values[:count], numbers)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_alternatives_of_one_row_are_found_as_in_numpy(kind, n):
    chooser = Chooser(Finder(2, load_library()))
    for row in some_logits(np.random.default_rng(n), kind, n, 4):
        for k in {1, min(5, n), min(20, n), min(MAX_K, n), min(MAX_K + 1, n)}:
            assert chooser.largest(row, k).tolist() == largest_in(row, k).tolist()
    chooser.close()


@pytest.mark.parametrize("scene", range(STEPS // 100))
def test_what_is_chosen_from_a_row_does_not_depend_on_the_other_rows_of_a_step(scene):
    dice, numbers = random.Random(scene), np.random.default_rng(scene)
    n = dice.choice([3, 60, 255, 256, 700, 1_500])
    logits = np.concatenate([some_logits(numbers, kind, n, 4) for kind in KINDS])
    choices = [
        a_choice(some_sampling(dice, n), [dice.randrange(n) for _ in range(dice.choice([0, 9]))])
        for _ in range(len(logits) // 2)
    ]
    before = logits.copy()
    alone = Chooser(Finder(1, load_library()))
    together = Chooser(Finder(scene % 3 + 1, load_library() if scene % 4 else None))
    among = np.array(sorted(dice.sample(range(n), n // 2 + 1)))
    expected = {}
    with contextlib.closing(alone), contextlib.closing(together):
        for _ in range(100):
            picked = [(i, dice.randrange(8)) for i in dice.sample(range(len(logits)), dice.randint(1, 32))]
            # An answer with drafts has several rows.
            rows = [Row(i, choices[i // 2], position) for i, position in picked]
            for key, row, token in zip(picked, rows, together.choose(logits, rows), strict=True):
                if key not in expected:
                    expected[key] = str(alone.choose(logits, [row])[0]), alone.choose_among(logits, row, among)
                assert str(token) == expected[key][0]
            # The row's grammar forbids that token.
            assert together.choose_among(logits, row, among) == expected[key][1]
    np.testing.assert_array_equal(logits, before)


def test_the_chosen_tokens_are_spread_like_their_probabilities():
    logits = some_logits(np.random.default_rng(3), "random", 500, 1)
    sampling = Sampling(seed=11, temperature=1.5)
    choice = a_choice(sampling)
    chooser = Chooser(Finder(1, load_library()))
    tokens = np.array(chooser.choose(logits, [Row(0, choice, position) for position in range(20_000)]))
    expected = ours(logits[0], choice)
    assert set(tokens.tolist()) <= set(expected)
    for token, share in expected.items():
        # Five standard deviations.
        assert abs(float(np.mean(tokens == token)) - share) < 5 * math.sqrt(share * (1 - share) / len(tokens)) + 1e-9


@pytest.mark.parametrize("value", [-INF, NAN])
@pytest.mark.parametrize("top_k", [0, 1, 40])
def test_from_logits_without_a_number_nothing_is_chosen(value, top_k):
    logits = np.full((1, 300), value, np.float32)
    row = Row(0, a_choice(Sampling(top_k=top_k, seed=1)), 0)
    (chosen,) = Chooser(Finder(1, load_library())).choose(logits, [row])
    assert isinstance(chosen, NothingToChoose)


@pytest.mark.parametrize("top_k", [0, 40])
def test_an_infinite_logit_is_chosen(top_k):
    logits = np.zeros((1, 300), np.float32)
    logits[0, 77] = INF
    row = Row(0, a_choice(Sampling(top_k=top_k, seed=1)), 0)
    assert Chooser(Finder(1, load_library())).choose(logits, [row]) == [77]


def a_spec(key, payload):
    """Return a job whose prompt no other job of the test has."""
    return JobSpec(key, "blue", {"prompt": "moza talu dibo kufe", "max_tokens": 30, **payload}, 30, 1e12)


@pytest.mark.parametrize("payload", [{"temperature": 0}, {"seed": 3}, {"seed": 3, "top_k": 0, "logprobs": 2}])
def test_a_row_without_a_number_fails_its_job_alone(backend, monkeypatch, payload):
    alone = Driven(backend)
    alone.submit("sound", {"prompt": "dibo kufe", "max_tokens": 6, **payload})
    alone.run_until_idle()

    def spoil(ctx, wait=lib.llama_synchronize):
        wait(ctx)
        for row in backend._step:
            if backend._prompts[row.slot] is spoiled.prompt and row.samples and row.start > 12:
                logits = lib.llama_get_logits(ctx)
                for token in range(backend.n_vocab):
                    logits[backend.n_vocab * row.index + token] = NAN

    with contextlib.closing(Driven(backend, reuse=False)) as driven:
        spoiled = driven.engine.prepare(a_spec("spoiled", payload))
        driven.submit("sound", {"prompt": "dibo kufe", "max_tokens": 6, **payload})
        driven.engine.submit(spoiled)
        monkeypatch.setattr(llama_cpp.llama_cpp, "llama_synchronize", spoil)
        driven.run_until_idle()
    assert (driven.ended["spoiled"].outcome, driven.ended["spoiled"].code) == ("failed", "engine_error")
    assert "no number" in driven.ended["spoiled"].message
    assert driven.ended["sound"].text == alone.ended["sound"].text


def test_without_the_library_answers_are_the_same(backend, monkeypatch):
    texts = []
    for library in (load_library(), None):
        monkeypatch.setattr(backend, "_chooser", Chooser(Finder(2, library)))
        with contextlib.closing(Driven(backend)) as driven:
            for i in range(12):
                fields = [{}, {"temperature": 0}, {"repeat_penalty": 1.3}, {"top_k": 0}][i % 4]
                driven.submit(f"{i}", {"prompt": f"dibo {i}", "seed": i, "max_tokens": 12, **fields})
            driven.run_until_idle()
            texts.append({key: ended.text for key, ended in driven.ended.items()})
    assert texts[0] == texts[1]


def test_a_fault_in_the_choice_of_one_row_fails_its_job_alone(backend, monkeypatch):
    apply = Adjustments.apply

    def fail_if_biased(self, logits, position):
        if len(self._biased):
            raise MemoryError("no room for the biases")
        return apply(self, logits, position)

    monkeypatch.setattr(Adjustments, "apply", fail_if_biased)
    with contextlib.closing(Driven(backend)) as driven:
        for key, fields in {"a": {}, "faulty": {"logit_bias": {"300": 1.0}}, "b": {"temperature": 0}}.items():
            driven.submit(key, {"prompt": "dibo", "seed": 1, "max_tokens": 6, **fields})
        driven.run_until_idle()
    assert {key: ended.outcome for key, ended in driven.ended.items()} == {
        "a": "succeeded",
        "faulty": "failed",
        "b": "succeeded",
    }

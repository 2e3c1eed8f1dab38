"""Sample the tokens of each sequence with a sampler chain of llama.cpp, and hold them to the sequence's grammar."""

import ctypes
import secrets
from functools import lru_cache
from typing import Any

import numpy as np

from workers.engine.sampling import Sampling, is_greedy
from workers.engine.structured.matcher import GrammarStuck, Matcher

#: Number of most recently generated tokens to which the penalties apply. `llama_cpp.Llama` has the same default.
_PENALTY_LAST_N = 64
_MASK64 = (1 << 64) - 1
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

_Logits = np.ndarray[Any, np.dtype[np.float32]]
_Ids = np.ndarray[Any, np.dtype[np.int64]]


class Sampler:
    """Samples the tokens of one sequence. `lib` is llama.cpp's API. `close` must be called exactly once.

    Greedy sampling without penalties or biases uses no chain. A chain is slower, because it first copies the logits of
    the whole vocabulary (measured with 16 rows and a vocabulary of 16,384 tokens). Instead, the largest logit is found
    in place.

    With a grammar, a token is sampled as if there were none. Only if the grammar forbids this token, another one is
    sampled from the tokens that the grammar allows. Usually the first token is allowed, and checking one token takes
    much less time than finding all allowed ones. Which tokens are sampled depends on nothing but the logits and the
    seed.
    """

    def __init__(
        self, lib: Any, n_vocab: int, sampling: Sampling, grammar: Matcher | None, end_tokens: frozenset[int]
    ) -> None:
        self._lib, self._n_vocab, self._grammar = lib, n_vocab, grammar
        stops = frozenset(sampling.stop_token_ids)
        #: The tokens that end the answer: the vocabulary's own, and those of the job.
        self._ends = end_tokens | stops
        self._min_tokens = sampling.min_tokens
        #: The tokens that are not chosen before the answer has `min_tokens` tokens, and those that are never chosen.
        self._early = np.array(sorted(self._ends), np.int64)
        self._never = np.array(sorted(end_tokens - stops) if sampling.ignore_eos else [], np.int64)
        self._penalizes = sampling.penalizes
        #: Number of tokens of the answer so far.
        self._n_accepted = 0
        #: The seed of the random choices; None if the most likely token is always taken.
        self._seed = None if is_greedy(sampling) else _seed64(sampling.seed)
        self._chain = None
        if self._seed is None and not (sampling.penalizes or sampling.logit_bias):
            return
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        parts = _parts(lib, n_vocab, sampling)
        #: Place of the sampler that makes the random choice, in the chain.
        self._last = len(parts) - 1
        for part in parts:
            lib.llama_sampler_chain_add(self._chain, part)

    @property
    def ended(self) -> bool:
        """Whether the grammar allows nothing more, because the answer is complete."""
        return self._grammar is not None and self._grammar.ended

    @property
    def grammar_cpu_s(self) -> float:
        """CPU time that the grammar has taken so far."""
        return 0.0 if self._grammar is None else self._grammar.cpu_s

    def ends_at(self, token: int) -> bool:
        """Return whether this token ends the answer."""
        return token in self._ends

    def accept(self, token: int) -> None:
        """Go on after a token that an earlier attempt sampled. Raises GrammarSlow."""
        self._n_accepted += 1
        if self._grammar is not None:
            self._grammar.accept(token)
        if self._penalizes:
            self._lib.llama_sampler_accept(self._chain, token)

    def sample(self, ctx: int, index: int) -> int:
        """Sample and accept the token after position `index` of the batch. Raises GrammarStuck or GrammarSlow."""
        if self._seed is not None:
            self._begin_draw(self._seed)
        masked = self._early if self._n_accepted < self._min_tokens else self._never
        self._n_accepted += 1
        if not len(masked):
            return self._draw(ctx, index)
        logits = self.logits(ctx, index)
        # The log probabilities of the answer are those of the model's own logits.
        kept = logits[masked]
        logits[masked] = -np.inf
        try:
            return self._draw(ctx, index)
        finally:
            logits[masked] = kept

    def _draw(self, ctx: int, index: int) -> int:
        if self._grammar is not None:
            return self._sample_by_grammar(self._grammar, ctx, index)
        if self._chain is None:
            return int(self.logits(ctx, index).argmax())
        token: int = self._lib.llama_sampler_sample(self._chain, ctx, index)
        return token

    def _sample_by_grammar(self, grammar: Matcher, ctx: int, index: int) -> int:
        logits = self.logits(ctx, index)
        if self._chain is not None and not self._penalizes:
            # This also accepts the token, which changes nothing in a chain without penalties. It is faster than _pick.
            token = int(self._lib.llama_sampler_sample(self._chain, ctx, index))
        else:
            token = self._pick(logits, None)
        if not grammar.allows(token):
            token = self._pick(logits, grammar.allowed())
            if not grammar.allows(token):
                raise GrammarStuck("the sampler chose a token that the grammar forbids")
        grammar.accept(token)
        if self._penalizes:
            self._lib.llama_sampler_accept(self._chain, token)
        return token

    def logits(self, ctx: int, index: int) -> _Logits:
        """Return a view of the logits at position `index` of the batch. The view is valid until the next decode."""
        pointer = self._lib.llama_get_logits_ith(ctx, index)
        return _floats(ctypes.addressof(pointer.contents), self._n_vocab)

    def _begin_draw(self, seed: int) -> None:
        """Replace the sampler that makes the random choice by a new one, whose seed depends on the token's position.

        The random state of an answer is then known from its seed and its length, so an answer that is continued by
        another worker gets the same tokens.
        """
        self._lib.llama_sampler_free(self._lib.llama_sampler_chain_remove(self._chain, self._last))
        draw = self._lib.llama_sampler_init_dist(_seed_at(seed, self._n_accepted))
        self._lib.llama_sampler_chain_add(self._chain, draw)

    def _pick(self, logits: _Logits, ids: _Ids | None) -> int:
        """Return one of the tokens `ids`, or of all tokens, without accepting it.

        If all of `ids` are masked, the grammar demands that the answer ends, and the first of them is returned.
        """
        logits = logits if ids is None else logits[ids]
        if self._chain is None or logits.max() == -np.inf:
            best = int(logits.argmax())
            return best if ids is None else int(ids[best])
        candidates = np.empty(len(logits), _CANDIDATE)
        candidates["id"] = np.arange(len(logits)) if ids is None else ids
        candidates["logit"], candidates["p"] = logits, 0.0
        pointer = candidates.ctypes.data_as(self._lib.llama_token_data_p)
        array = self._lib.llama_token_data_array(data=pointer, size=len(candidates), selected=-1, sorted=False)
        self._lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        token: int = array.data[array.selected].id
        return token

    def close(self) -> None:
        """Free the chain."""
        if self._chain is not None:
            self._lib.llama_sampler_free(self._chain)


@lru_cache(maxsize=4096)
def _floats(address: int, n: int) -> _Logits:
    """Return a view of memory that llama.cpp owns. It is cached, because each step uses the same few addresses."""
    numbers: Any = (ctypes.c_float * n).from_address(address)
    floats: _Logits = np.frombuffer(numbers, np.float32)
    return floats


def _parts(lib: Any, n_vocab: int, sampling: Sampling) -> list[Any]:
    """Return the samplers of a chain, in the same order as in `llama_cpp.Llama`.

    Biases and penalties come first. They are followed either by greedy sampling, or by top-k, top-p, min-p, temperature
    and the random choice.
    """
    parts = []
    if sampling.logit_bias:
        biases = (lib.llama_logit_bias * len(sampling.logit_bias))(*sampling.logit_bias)
        parts.append(lib.llama_sampler_init_logit_bias(n_vocab, len(biases), biases))
    if sampling.penalizes:
        repeat, frequency, presence = sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty
        parts.append(lib.llama_sampler_init_penalties(n_vocab, _PENALTY_LAST_N, repeat, frequency, presence))
    if is_greedy(sampling):
        return [*parts, lib.llama_sampler_init_greedy()]
    return [
        *parts,
        lib.llama_sampler_init_top_k(sampling.top_k),
        lib.llama_sampler_init_top_p(sampling.top_p, 1),
        lib.llama_sampler_init_min_p(sampling.min_p, 1),
        lib.llama_sampler_init_temp(sampling.temperature),
        # `_begin_draw` replaces this sampler before each token.
        lib.llama_sampler_init_dist(0),
    ]


def _seed64(seed: int | None) -> int:
    """Return a 64-bit seed, random if `seed` is None."""
    return secrets.randbits(64) if seed is None else seed % (1 << 64)


def _seed_at(seed: int, position: int) -> int:
    """Return the 32-bit seed of the token at `position` of an answer; never 0xFFFFFFFF, a random seed to llama.cpp.

    The steps mix the bits as SplitMix64 does (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    2014), so that neighbouring seeds and positions have unrelated results.
    """
    mixed = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK64
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _MASK64
    return (mixed ^ mixed >> 31) % 0xFFFFFFFF

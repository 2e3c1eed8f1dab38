"""Sample the tokens of each sequence with a sampler chain of llama.cpp.

A grammar is kept outside the chain, because a grammar inside the chain could end the process (see Sampler).
"""

import ctypes
import secrets
import time
from functools import lru_cache
from typing import Any

import numpy as np

from workers.engine.sampling import Sampling, is_greedy

#: Number of most recently generated tokens to which the penalties apply. `llama_cpp.Llama` has the same default.
_PENALTY_LAST_N = 64
#: CPU time, in seconds, that a grammar may take to accept one token. With an unambiguous schema,
#: a token takes about a thousandth of this time. The time grows with the square of the number of possible parses, and
#: each level of nested values multiplies that number.
_SLOW_S = 0.02
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class GrammarStuck(Exception):
    """The grammar allows none of the model's tokens as the next token of the answer."""


class GrammarSlow(Exception):
    """The answer has so many possible parses in the grammar that its next token would delay the whole batch."""


class Sampler:
    """Samples the tokens of one sequence. `lib` is llama.cpp's API. `close` must be called exactly once.

    Greedy sampling without penalties, biases or a grammar uses no chain. A chain is slower, because it first copies the
    logits of the whole vocabulary (measured with 16 rows and a vocabulary of 16,384 tokens). Instead, the largest logit
    is found in place.

    If a grammar is told to accept a token that it forbids, llama.cpp throws a C++ exception through C code, which ends
    the process. Therefore each token is checked against the grammar before `llama_sampler_accept` is called.
    """

    def __init__(self, lib: Any, vocab: int, n_vocab: int, sampling: Sampling, grammar: str) -> None:
        self._lib, self._n_vocab = lib, n_vocab
        self._chain = self._grammar = None
        if is_greedy(sampling) and not (sampling.penalizes or sampling.logit_bias or grammar):
            return
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for part in _parts(lib, n_vocab, sampling):
            lib.llama_sampler_chain_add(self._chain, part)
        self._grammar = new_grammar(lib, vocab, grammar) if grammar else None

    def sample(self, ctx: int, index: int) -> int:
        """Sample and accept the token after position `index` of the batch. Raises GrammarStuck or GrammarSlow."""
        if self._chain is None:
            return int(self.logits(ctx, index).argmax())
        if self._grammar is None:
            token: int = self._lib.llama_sampler_sample(self._chain, ctx, index)
            return token
        return self._sample_by_grammar(ctx, index)

    def _sample_by_grammar(self, ctx: int, index: int) -> int:
        lib = self._lib
        logits = self.logits(ctx, index)
        token = self._pick(logits, by_grammar=False)
        if not self._allows(token):
            # Checking one token is cheap, so the grammar filters the whole vocabulary only if it forbids that token.
            token = self._pick(logits, by_grammar=True)
            if not self._allows(token):
                raise GrammarStuck("the grammar allows no token of the vocabulary at this point")
        began_s = time.thread_time()
        lib.llama_sampler_accept(self._grammar, token)
        if time.thread_time() - began_s > _SLOW_S:
            raise GrammarSlow("the schema is too ambiguous: it allows too many ways to parse the answer")
        lib.llama_sampler_accept(self._chain, token)
        return token

    def logits(self, ctx: int, index: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return a view of the logits at position `index` of the batch. The view is valid until the next decode."""
        pointer = self._lib.llama_get_logits_ith(ctx, index)
        return _floats(ctypes.addressof(pointer.contents), self._n_vocab)

    def _pick(self, logits: np.ndarray[Any, np.dtype[np.float32]], *, by_grammar: bool) -> int:
        candidates = np.empty(self._n_vocab, _CANDIDATE)
        candidates["id"], candidates["logit"], candidates["p"] = np.arange(self._n_vocab), logits, 0.0
        array = self._array(candidates)
        if by_grammar:
            self._lib.llama_sampler_apply(self._grammar, ctypes.byref(array))
        self._lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        token: int = array.data[array.selected].id
        return token

    def _allows(self, token: int) -> bool:
        candidate = np.array([(token, 0.0, 0.0)], _CANDIDATE)
        self._lib.llama_sampler_apply(self._grammar, ctypes.byref(self._array(candidate)))
        return bool(np.isfinite(candidate["logit"][0]))

    def _array(self, candidates: Any) -> Any:
        pointer = candidates.ctypes.data_as(self._lib.llama_token_data_p)
        return self._lib.llama_token_data_array(data=pointer, size=len(candidates), selected=-1, sorted=False)

    def close(self) -> None:
        """Free the chain and the grammar."""
        for sampler in (self._chain, self._grammar):
            if sampler is not None:
                self._lib.llama_sampler_free(sampler)


@lru_cache(maxsize=4096)
def _floats(address: int, n: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a view of memory that llama.cpp owns. It is cached, because each step uses the same few addresses."""
    numbers: Any = (ctypes.c_float * n).from_address(address)
    floats: np.ndarray[Any, np.dtype[np.float32]] = np.frombuffer(numbers, np.float32)
    return floats


def new_grammar(lib: Any, vocab: int, grammar: str) -> Any:
    """Return a grammar sampler, which the caller must free. Raises ValueError if llama.cpp cannot parse the grammar."""
    sampler = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    if not sampler:
        raise ValueError("llama.cpp cannot parse the grammar")
    return sampler


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
        lib.llama_sampler_init_dist(_seed32(sampling.seed)),
    ]


def _seed32(seed: int | None) -> int:
    """Return a 32-bit seed, random if `seed` is None; never 0xFFFFFFFF, which means a random seed to llama.cpp."""
    return secrets.randbelow(0xFFFFFFFF) if seed is None else seed % 0xFFFFFFFF

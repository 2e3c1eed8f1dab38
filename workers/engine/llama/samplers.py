"""Sampler chains in C, one a sequence; a grammar stands beside its chain, so that it can never end the process."""

import ctypes
import secrets
import time
from functools import lru_cache
from typing import Any

import numpy as np

from workers.engine.sampling import Sampling, is_greedy

#: Generated tokens that penalties look at: what `llama_cpp.Llama` looks at.
_PENALTY_LAST_N = 64
#: CPU time, in s, that a grammar may take to accept a token: a thousand times what it takes by a schema that can be
#: read in one way. It grows with the square of the ways, and these multiply with each value within a value.
_SLOW_S = 0.02
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class GrammarStuck(Exception):
    """No token of the vocabulary can go on the answer as its grammar asks."""


class GrammarSlow(Exception):
    """The answer can be read in so many ways by its grammar that the next token would hold up the whole batch."""


class Sampler:
    """How one sequence's next token is chosen. `lib` is llama.cpp's API; freed by `close`, only once.

    A plain greedy answer has no chain: the largest logit is found in the row itself, without the copy of
    the vocabulary that a chain makes first (measured: 16 rows of 16,384 tokens).

    llama.cpp throws a C++ exception through C when a grammar is told of a token that it does not allow,
    which ends the process. So each token is shown to the grammar before it is accepted.
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
        """The token after batch row `index`, accepted. Raises GrammarStuck and GrammarSlow."""
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
            # A look at the one token is cheap; a look at the whole vocabulary is taken only when it must be.
            token = self._pick(logits, by_grammar=True)
            if not self._allows(token):
                raise GrammarStuck("no token of the vocabulary fits the grammar here")
        began_s = time.thread_time()
        lib.llama_sampler_accept(self._grammar, token)
        if time.thread_time() - began_s > _SLOW_S:
            raise GrammarSlow("the schema allows too many ways to read the answer at once")
        lib.llama_sampler_accept(self._chain, token)
        return token

    def logits(self, ctx: int, index: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A view of a batch row's logits, good until the next decode."""
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
        one = np.array([(token, 0.0, 0.0)], _CANDIDATE)
        self._lib.llama_sampler_apply(self._grammar, ctypes.byref(self._array(one)))
        return bool(np.isfinite(one["logit"][0]))

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
    """A view of memory that llama.cpp has just named: the same few places each step, whose views are made once."""
    numbers: Any = (ctypes.c_float * n).from_address(address)
    floats: np.ndarray[Any, np.dtype[np.float32]] = np.frombuffer(numbers, np.float32)
    return floats


def new_grammar(lib: Any, vocab: int, grammar: str) -> Any:
    """A grammar's sampler, to be freed by the caller. Raises ValueError when llama.cpp cannot parse it."""
    sampler = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    if not sampler:
        raise ValueError("llama.cpp cannot parse the grammar")
    return sampler


def _parts(lib: Any, n_vocab: int, sampling: Sampling) -> list[Any]:
    """The chain's links, in the order of `llama_cpp.Llama`: bias, penalties, then greedy or the cuts and the dice."""
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
    """A seed llama.cpp takes as such: its largest one stands for `any`."""
    return secrets.randbelow(0xFFFFFFFF) if seed is None else seed % 0xFFFFFFFF

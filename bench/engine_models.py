"""The models and prompts of the engine's benchmarks: random weights of given shapes, prompts of an exact length."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workers.demo.gguf_file import FileType
from workers.demo.random_gguf import write_random_model

#: Speed does not depend on what weights are, only on how many there are and how they are stored.
SHAPES: dict[str, dict[str, int]] = {
    "small": {"n_vocab": 4096, "n_embd": 192, "n_layer": 4, "n_head": 6, "n_head_kv": 3, "n_ff": 512},
    "135m": {"n_vocab": 49152, "n_embd": 576, "n_layer": 30, "n_head": 9, "n_head_kv": 3, "n_ff": 1536},
    # As Llama 3.2 1B, for devices that the others do not fill.
    "1b": {"n_vocab": 128256, "n_embd": 2048, "n_layer": 16, "n_head": 32, "n_head_kv": 8, "n_ff": 8192},
}
#: Longest text that any of them is asked for.
N_CTX_TRAIN = 16384
_SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]


@dataclass(frozen=True)
class Load:
    """What is asked at once: so many clients, each for one answer after another."""

    clients: int
    prompt_tokens: int
    answer_tokens: int
    #: Answers that each client gets.
    turns: int

    @property
    def jobs(self) -> int:
        """Answers in all."""
        return self.clients * self.turns

    @property
    def tokens(self) -> int:
        """Generated tokens in all."""
        return self.jobs * self.answer_tokens


def model_file(name: str, file_type: FileType, folder: Path) -> Path:
    """The model of that shape, written into `folder` unless it is there."""
    path = folder / f"{name}-{file_type}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part")
        write_random_model(written, file_type=file_type, n_ctx_train=N_CTX_TRAIN, **SHAPES[name])
        written.rename(path)
    return path


class Prompts:
    """Texts of exactly `n` tokens, the beginning token included, no two of which begin alike."""

    def __init__(self, count: Callable[[str], int], seed: int) -> None:
        self._count, self._dice = count, random.Random(seed)

    def text(self, n_tokens: int, beginning: str = "") -> str:
        """One text; after `beginning`, words that no other text has there."""
        words = beginning
        while self._count(words) < n_tokens:
            missing = n_tokens - self._count(words)
            longer = words + "".join(f" {self._word()}" for _ in range(max(1, missing // 4)))
            words = longer if self._count(longer) <= n_tokens else self._one_more(words, n_tokens)
        return words

    def _word(self) -> str:
        return "".join(self._dice.choices(_SYLLABLES, k=self._dice.randint(1, 3)))

    def _one_more(self, words: str, n_tokens: int) -> str:
        """The text with a little more: a word, or a sign that joins with nothing."""
        for more in (f" {self._word()}", "!", "?", ";"):
            if self._count(words) < self._count(words + more) <= n_tokens:
                return words + more
        raise RuntimeError(f"no text of {n_tokens} tokens was found")


def spread(values: list[float]) -> dict[str, float]:
    """Lowest, median and highest."""
    low, median, high = np.percentile(np.array(values), [0, 50, 100])
    return {"low": float(low), "median": float(median), "high": float(high)}


def kept(figures: Any) -> Any:
    """Figures as JSON takes them."""
    if isinstance(figures, dict):
        return {str(name): kept(value) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [kept(value) for value in figures]
    return round(figures, 4) if isinstance(figures, float) else figures

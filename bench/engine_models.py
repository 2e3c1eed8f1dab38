"""Models and prompts for the engine's benchmarks: random weights of given shapes, prompts of an exact length."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from workers.demo.gguf_file import FileType
from workers.demo.random_gguf import write_random_model


class ModelSize(TypedDict):
    """The size of a model with random weights, as `write_random_model` takes it."""

    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int


#: Speed does not depend on the values of the weights, only on their number and how they are stored.
SHAPES: dict[str, ModelSize] = {
    "small": {"n_vocab": 4096, "n_embd": 192, "n_layer": 4, "n_head": 6, "n_head_kv": 3, "n_ff": 512},
    "135m": {"n_vocab": 49152, "n_embd": 576, "n_layer": 30, "n_head": 9, "n_head_kv": 3, "n_ff": 1536},
    # A large vocabulary behind a small model: choosing tokens takes as much of a step as on a GPU.
    "wide": {"n_vocab": 128256, "n_embd": 64, "n_layer": 1, "n_head": 2, "n_head_kv": 1, "n_ff": 128},
    # The shape of Llama 3.2 1B, for devices that the smaller models cannot keep busy.
    "1b": {"n_vocab": 128256, "n_embd": 2048, "n_layer": 16, "n_head": 32, "n_head_kv": 8, "n_ff": 8192},
}
#: The longest text, in tokens, that any benchmark sends to one of these models.
N_CTX_TRAIN = 16384
_SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]


@dataclass(frozen=True)
class Load:
    """One load: `clients` run at once, and each requests one answer after another."""

    clients: int
    prompt_tokens: int
    answer_tokens: int
    #: Answers for each client.
    answers_per_client: int
    #: Whether the answers have default sampling. Otherwise they are greedy.
    sampled: bool = False

    @property
    def name(self) -> str:
        """The load's name among the figures."""
        return f"{self.prompt_tokens} x {self.clients}" + (", default sampling" if self.sampled else "")

    @property
    def jobs(self) -> int:
        """The total number of answers."""
        return self.clients * self.answers_per_client

    @property
    def tokens(self) -> int:
        """The total number of generated tokens."""
        return self.jobs * self.answer_tokens


def model_file(name: str, file_type: FileType, folder: Path) -> Path:
    """Return the file of the model with that shape; write it into `folder` if it does not exist."""
    path = folder / f"{name}-{file_type}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part")
        write_random_model(written, file_type=file_type, n_ctx_train=N_CTX_TRAIN, **SHAPES[name])
        written.rename(path)
    return path


class Prompts:
    """Generates texts with an exact number of tokens, including the BOS token. No two texts begin alike."""

    def __init__(self, count: Callable[[str], int], seed: int) -> None:
        self._count, self._rng = count, random.Random(seed)

    def text(self, n_tokens: int, beginning: str = "") -> str:
        """Return one text that starts with `beginning` and continues with words that no other text has there."""
        words = beginning
        while self._count(words) < n_tokens:
            missing = n_tokens - self._count(words)
            longer = words + "".join(f" {self._word()}" for _ in range(max(1, missing // 4)))
            words = longer if self._count(longer) <= n_tokens else self._one_more(words, n_tokens)
        return words

    def _word(self) -> str:
        return "".join(self._rng.choices(_SYLLABLES, k=self._rng.randint(1, 3)))

    def _one_more(self, words: str, n_tokens: int) -> str:
        """Return the text with one short addition: a word, or a punctuation mark that forms a token of its own."""
        for more in (f" {self._word()}", "!", "?", ";"):
            if self._count(words) < self._count(words + more) <= n_tokens:
                return words + more
        raise RuntimeError(f"no text of {n_tokens} tokens was found")


def spread(values: list[float]) -> dict[str, float]:
    """Return the lowest value, the median and the highest value."""
    low, median, high = np.percentile(np.array(values), [0, 50, 100])
    return {"low": float(low), "median": float(median), "high": float(high)}


def rounded(figures: Any) -> Any:
    """Return the figures in a form that JSON can hold, with numbers rounded to four decimal places."""
    if isinstance(figures, dict):
        return {str(name): rounded(value) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [rounded(value) for value in figures]
    return round(figures, 4) if isinstance(figures, float) else figures

"""Estimates tokens from the shapes of words and from the parts of a chat, with weights that a worker has measured.

A tokenizer makes about one token of a short word, and more of a long one, of a number or of an indentation. Counts of
such shapes are quick to make without the model's vocabulary. A worker that has the vocabulary and the chat template
finds the weight of each (workers/engine/llama/prompt_fit.py) and publishes them with its heartbeat.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

from shared.jobs.request_texts import MAX_BYTES_PER_TOKEN, compact, message_texts, shown_tools


def _kind(byte: int) -> str:
    character = chr(byte)
    if byte >= 128:
        return "x"
    if character.isalpha():
        return "A" if character.isupper() else "a"
    if character.isdigit():
        return "0"
    return " " if character == " " else "\n" if character in "\n\r\t" else "."


#: Maps each byte to a letter for its kind: small and capital letters, digits, spaces, line ends, marks, and others.
_KINDS = bytes(ord(_kind(byte)) for byte in range(256))
#: The pairs of bytes that begin a word, and a run of marks: one of another kind, and one of theirs.
_BEGINS = tuple([bytes((before, kind)) for before in b" \n.0xa" if before != kind] for kind in b"a.")
#: The first bytes of characters with two, three and four bytes in UTF-8.
_LEADS = tuple(bytes(range(first, last)) for first, last in ((0xC2, 0xE0), (0xE0, 0xF0), (0xF0, 0xF5)))
#: Runs whose number matters, in a text without capital letters: letters, long words, marks, line ends, indentations.
_RUNS = (b"a", b"aaaaa", b"aaaaaaaa", b"0", b".", b" .", b"\n", b"  ")
#: The same in a text with them: words that begin inside a name, and names in capital letters.
_CAPITALS = (b"aA", b"AA")
#: The number of counts of a text and of a chat.
TEXT_COUNTS, CHAT_COUNTS = 2 + len(_RUNS) + len(_CAPITALS) + len(_LEADS), 9
#: Of a longer text, evenly spaced pieces of this many bytes altogether are counted.
_MAX_BYTES, _PIECES = 256 << 10, 8


@dataclass(frozen=True)
class PromptWeights:
    """The tokens for each count of a text and for each count of a chat."""

    text: tuple[float, ...]
    chat: tuple[float, ...]

    def __str__(self) -> str:
        """Return the form in which a worker publishes the weights."""
        return " ".join(f"{weight:.4g}" for weight in (*self.text, *self.chat))

    def text_tokens(self, text: str) -> float:
        size = len(text.encode())
        return max(_sum(self.text, text_counts(text)), size / MAX_BYTES_PER_TOKEN)

    def chat_tokens(self, payload: Mapping[str, Any]) -> float:
        texts = sum(map(self.text_tokens, message_texts(payload)))
        return texts + _sum(self.chat, chat_counts(payload, self.text_tokens))


def read_weights(published: str) -> PromptWeights | None:
    try:
        weights = tuple(map(float, published.split()))
    except ValueError:
        return None
    if len(weights) != TEXT_COUNTS + CHAT_COUNTS or not all(0 <= weight < 1e4 for weight in weights):
        return None
    return PromptWeights(weights[:TEXT_COUNTS], weights[TEXT_COUNTS:])


def text_counts(text: str) -> list[float]:
    raw = text.encode()
    whole = len(raw)
    if whole > _MAX_BYTES:
        size = _MAX_BYTES // _PIECES
        raw = b"".join(raw[at : at + size] for at in range(0, whole - size, (whole - size) // (_PIECES - 1) - 1))
    shapes = raw.translate(_KINDS)
    small = shapes.replace(b"A", b"a")
    begins = [sum(map(small.count, pairs)) for pairs in _BEGINS]
    leads = [0, 0, 0] if raw.isascii() else [len(raw) - len(raw.translate(None, bytes_)) for bytes_ in _LEADS]
    counts: list[float] = [*begins, *map(small.count, _RUNS), *map(shapes.count, _CAPITALS), *leads]
    counts[0] += small.startswith(b"a")
    return counts if whole == len(raw) else [count * whole / len(raw) for count in counts]


def chat_counts(payload: Mapping[str, Any], tokens: Callable[[str], float]) -> list[float]:
    """Return the parts of a chat for which a template adds tokens. The texts of the tools count by their tokens."""
    messages, tools = payload["messages"], shown_tools(payload)
    without_system = bool(messages) and messages[0].get("role") not in ("system", "developer")
    functions = [_function(tool) for tool in tools]
    about = (f"{function.get('name', '')} {function.get('description') or ''}" for function in functions)
    parameters = [function.get("parameters") or {} for function in functions]
    names = ("\n".join(_names(each)) for each in parameters)
    return [
        1.0,
        len(messages),
        without_system,
        bool(tools),
        len(tools),
        bool(tools) and without_system,
        *(sum(map(tokens, texts)) for texts in (about, names, map(compact, parameters))),
    ]


def _function(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def _names(parameters: Any) -> Iterable[str]:
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return map(str, properties) if isinstance(properties, Mapping) else ()


def _sum(weights: Sequence[float], counts: Sequence[float]) -> float:
    total: float = sum(map(mul, weights, counts))
    return total

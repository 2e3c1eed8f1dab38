"""Finds how many tokens the shapes of a text and the parts of a chat make, with the model's vocabulary and template.

A sample of prose, code and JSON is tokenized, and some short chats with and without tools are rendered. The weights are
those that explain the numbers of tokens best. None is negative, so that no estimate is.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.jobs.prompt_weights import CHAT_COUNTS, PromptWeights, chat_counts, text_counts
from shared.jobs.request_texts import message_texts
from workers.engine.events import JobRejected

#: Returns the number of tokens of a text, and of the prompt of a chat with these messages and tools.
TextTokens = Callable[[str], int]
ChatTokens = Callable[[list[dict[str, Any]], Sequence[Mapping[str, Any]]], int]
_Counts = NDArray[np.float64]

_SAMPLE = Path(__file__).with_name("prompt_sample.txt")
_TOOLS = Path(__file__).with_name("prompt_sample_tools.json")
#: Separates the texts of the sample.
_SEPARATOR = "\n%%\n"
#: How strongly weights that the sample does not determine are drawn towards zero.
_RIDGE = 1e-3
#: With a larger mean error in its own sample, nothing is published: the vocabulary is of another kind.
_MAX_ERROR = 0.15
_SYSTEM = {"role": "system", "content": "You answer in one sentence."}
_ASKED = {"role": "user", "content": "What is the weather like today?"}
_SAID = {"role": "assistant", "content": "It is warm and dry."}
_CHATS = ([_ASKED], [_SYSTEM, _ASKED], [_ASKED, _SAID, _ASKED], [_SYSTEM, _ASKED, _SAID, _ASKED, _SAID, _ASKED])


def published_weights(text_tokens: TextTokens, chat_tokens: ChatTokens | None) -> str:
    """Return the weights for a model in the form that the door reads; "" if none explain its numbers of tokens.

    The arguments are those of `fit_prompt_weights`.
    """
    try:
        found = fit_prompt_weights(text_tokens, chat_tokens)
    except JobRejected:  # an odd tokenizer cannot process the sample
        return ""
    return "" if found is None else str(found)


def fit_prompt_weights(text_tokens: TextTokens, chat_tokens: ChatTokens | None) -> PromptWeights | None:
    """Return the weights for a model; None if they do not explain its numbers of tokens.

    `chat_tokens` is None if the model has no chat template. It may raise anything on a chat that the template refuses.
    """
    texts = _SAMPLE.read_text("utf-8").split(_SEPARATOR)
    counts = np.array([text_counts(text) for text in texts])
    tokens = np.array([max(1, text_tokens(text)) for text in texts])
    of_text = _fit(counts, tokens)
    if np.mean(np.abs(counts @ of_text / tokens - 1)) > _MAX_ERROR:
        return None
    weights = PromptWeights(tuple(of_text.tolist()), (0.0,) * CHAT_COUNTS)
    return weights if chat_tokens is None else _with_chats(weights, text_tokens, chat_tokens)


def _with_chats(weights: PromptWeights, text_tokens: TextTokens, chat_tokens: ChatTokens) -> PromptWeights | None:
    parts = json.loads(_TOOLS.read_text("utf-8"))
    lists = [[], *([tool] for tool in parts), parts[:2], parts[3:6], parts[1:]]
    counts, tokens = [], []
    for messages, tools in product(_CHATS, lists):
        payload = {"messages": messages, "tools": tools}
        try:
            total = chat_tokens(messages, tools)
        except Exception:  # noqa: BLE001, S112 - the template is untrusted and may raise anything
            continue
        counts.append(chat_counts(payload, weights.text_tokens))
        tokens.append(max(1, total - sum(map(text_tokens, message_texts(payload)))))
    if not counts:
        return None
    return PromptWeights(weights.text, tuple(_fit(np.array(counts), np.array(tokens)).tolist()))


def _fit(counts: _Counts, tokens: NDArray[np.int_]) -> _Counts:
    """Return the weights with the smallest relative errors, none of them negative."""
    rows = counts / tokens[:, None]
    scale = np.sqrt((rows**2).mean(0))
    used = scale > 0
    weights = np.zeros(counts.shape[1])
    while used.any():
        left = rows[:, used] / scale[used]
        ridge = np.sqrt(_RIDGE * len(rows)) * np.eye(left.shape[1])
        wanted = np.concatenate([np.ones(len(rows)), np.zeros(left.shape[1])])
        found = np.linalg.lstsq(np.vstack([left, ridge]), wanted, rcond=None)[0]
        if found.min() >= 0:
            weights[used] = found / scale[used]
            break
        used[np.flatnonzero(used)[found.argmin()]] = False
    return weights

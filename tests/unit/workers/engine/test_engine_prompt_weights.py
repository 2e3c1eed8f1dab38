"""Tests that the door can estimate a prompt's tokens with the weights that a model's worker publishes."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.jobs import cost, prompt_weights
from shared.jobs.prompt_weights import PromptWeights, read_weights
from shared.settings.settings import load
from workers import demo
from workers.engine.events import JobSpec
from workers.engine.llama.backend import LlamaBackend, load_backend
from workers.engine.llama.prompt_fit import fit_prompt_weights

PROSE = (
    "The harbour was quiet when the last ferry came in. Two passengers left it, and one of them carried a wooden box "
    "that seemed too heavy for its size. Nobody asked what was inside. On the pier a man sold oranges, and the clock "
    "above the customs house had stopped at twenty past four, as it had every winter since the old keeper retired. "
)
CODE = inspect.getsource(json.decoder)
SYSTEM = {"role": "system", "content": "You are a careful assistant. Answer in the language of the question."}


def a_tool(name: str, about: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    shape = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": shape}}


TOOLS = [
    a_tool(
        "read_file", "Read a file of the project.", path="The path of the file", encoding="The encoding of the file"
    ),
    a_tool("send_message", "Send a short message to a colleague.", to="Who gets the message", text="The message"),
    a_tool("current_price", "The current price of a share.", symbol="The symbol of the share"),
]


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaBackend]:
    """The demo model on the CPU."""
    path = Path(demo.__file__).with_name("penstock-demo.gguf")
    backend = load_backend(load({}, None, device="cpu", max_batch_size=1, kv_cells=8192, threads=1), path)
    yield backend
    backend.close()


def weights_of(model: LlamaBackend) -> PromptWeights:
    weights = read_weights(model.facts.prompt_weights)
    assert weights is not None
    return weights


@pytest.mark.parametrize("tools", [0, 1, 3])
@pytest.mark.parametrize("system", [[], [SYSTEM]], ids=["plain", "system"])
@pytest.mark.parametrize("text", [PROSE, PROSE * 8, CODE[:1_200], CODE[:6_000]], ids=["prose", "8", "code", "6k"])
def test_the_estimate_of_a_chat_is_within_a_tenth_of_its_tokens(
    model: LlamaBackend, text: str, system: list[dict[str, Any]], tools: int
) -> None:
    payload = {"messages": [*system, {"role": "user", "content": text}], "tools": TOOLS[:tools]}
    counted = model.prepare(JobSpec("a", "blue", payload, 1, 1e9)).prompt_tokens
    assert cost.estimate(payload, weights=weights_of(model)) == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_tools_count_only_if_the_prompt_shows_them(model: LlamaBackend, choice: str) -> None:
    payload = {"messages": [{"role": "user", "content": PROSE}], "tools": TOOLS, "tool_choice": choice}
    counted = model.prepare(JobSpec("a", "blue", payload, 1, 1e9)).prompt_tokens
    assert cost.estimate(payload, weights=weights_of(model)) == pytest.approx(counted, rel=0.1)


def test_texts_of_other_scripts_and_empty_ones_have_an_estimate_of_at_least_one(model: LlamaBackend) -> None:
    weights = weights_of(model)
    for text in ("", " ", "\0", "z" * 100_000, "電車は朝八時に出発します。", "🎉🎉", "\ud800"[:0]):
        payload = {"prompt": text}
        assert cost.lower_bound(payload) <= cost.estimate(payload, weights=weights)


def test_a_very_long_text_is_estimated_from_pieces_of_it(model: LlamaBackend) -> None:
    weights = weights_of(model)
    long = PROSE * 4_000
    assert weights.text_tokens(long) == pytest.approx(4_000 * weights.text_tokens(PROSE), rel=0.02)


def test_a_vocabulary_that_is_not_explained_publishes_no_weights() -> None:
    assert fit_prompt_weights(lambda text: 1 + hash(text) % 1_000, None) is None


@pytest.mark.parametrize("published", ["", "1 2 3", "nan " * 24, "-1 " * 24, "1e9 " * 24, "words " * 24])
def test_weights_of_another_form_are_ignored(published: str) -> None:
    assert read_weights(published) is None
    assert read_weights(" ".join(["0.5"] * (prompt_weights.TEXT_COUNTS + prompt_weights.CHAT_COUNTS))) is not None

"""A random model that answers in harmony, requests to it, and the check of the calls in its answers."""

from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from shared.answer_parts import AnswerParts
from shared.settings.settings import load
from tests.support.fits_schema import assert_fits
from tests.support.gguf_copy import copy_gguf
from tests.support.tool_templates import CONTROL, HARMONY_TEMPLATE, a_tool
from workers.engine.llama.backend import LlamaBackend, load_backend

WEATHER = a_tool("get_weather", unit={"enum": ["C", "F"]})
LATER = a_tool("get_weather_at", hour={"type": "integer", "minimum": 0, "maximum": 23})
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, LATER)}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "dibo kufe"}],
    "max_tokens": 12,
    "parts": True,
    "temperature": 0,
}
TOOLS: dict[str, Any] = CHAT | {"tools": [WEATHER, LATER]}
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
#: Marks a test that is about a model whose marks are control tokens.
only_tokens = pytest.mark.parametrize("harmony", [True], indirect=True, ids=["tokens"])


def copy_harmony(source: Path, path: Path, *, as_tokens: bool) -> None:
    """Copy a model to `path`, with a template like gpt-oss's and its marks as control tokens or as text."""
    # No text contains these bytes, so nothing else needs their tokens.
    pieces = {f"<0x{0xF8 + i:X}>": name for i, name in enumerate(CONTROL["harmony"] if as_tokens else ())}
    copy_gguf(source, path, pieces=pieces, piece_type=TokenType.CONTROL, template=HARMONY_TEMPLATE)


def load_harmony(source: Path, path: Path, *, as_tokens: bool) -> LlamaBackend:
    """Copy a model, as `copy_harmony` does, and load the copy."""
    copy_harmony(source, path, as_tokens=as_tokens)
    backend = load_backend(load({}, None, device="cpu", max_batch_size=4, kv_cells=4096, threads=1), path)
    assert isinstance(backend, LlamaBackend)
    return backend


def check_calls(parts: AnswerParts, content: str = "", reasoning: str = "") -> None:
    """Check that the answer has calls, with arguments that fit, beside this content and this reasoning."""
    assert (parts.content, parts.reasoning) == (content, reasoning)
    assert parts.calls
    for call in parts.calls[:-1] if len(parts.calls) > 1 else parts.calls:
        assert_fits(SCHEMAS[call.name], call.arguments)

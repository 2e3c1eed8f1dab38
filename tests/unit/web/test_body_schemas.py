"""The JSON schemas of the request bodies, which /openapi.json has, accept no body that the door refuses."""

from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel, ValidationError

from web.api.request_schema import SubmitBody
from web.http.api_errors import ApiError
from web.openai.chat_schema import ChatWithTools, CompletionBody
from web.openai.embeddings_schema import EmbeddingsBody
from web.openai.rerank_schema import RerankBody
from web.openai.responses_schema import ResponsesWithTools

HI = [{"role": "user", "content": "hi"}]
#: A small valid request for each body.
SMALL: dict[type[BaseModel], dict[str, Any]] = {
    SubmitBody: {"prompt": "hi"},
    ChatWithTools: {"messages": HI},
    CompletionBody: {"prompt": "hi"},
    ResponsesWithTools: {"input": "hi"},
    EmbeddingsBody: {"input": "hi"},
    RerankBody: {"query": "hi", "documents": ["ho"]},
}
GENERATING = (SubmitBody, ChatWithTools, CompletionBody, ResponsesWithTools)


def accepts(model: type[BaseModel], body: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether the schema accepts a body, and whether the door does."""
    schema = model.model_json_schema()
    by_schema = jsonschema_rs.Draft202012Validator(schema).is_valid(body)
    try:
        model.model_validate(body)
    except (ApiError, ValidationError):
        return by_schema, False
    return by_schema, True


INVALID: list[dict[str, Any]] = [
    {"max_tokens": 0, "max_output_tokens": 0},
    {"temperature": 5.5},
    {"top_k": -2},
    {"stop": ""},
    {"stop": ["x"] * 17},
    {"stop": "x" * 257},
    {"stop_token_ids": [-1]},
    {"stop_token_ids": [1] * 257},
    {"min_tokens": -1},
    {"ignore_eos": "yes"},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"1": 101}},
    {"logit_bias": {"1" * 10: 1}},
    {"priority": 2},
    {"supersede_key": ""},
    {"deadline_ms": 0},
    {"model": ""},
    {"model": "a\0b"},
    {"colour": "red"},
]


@pytest.mark.parametrize("model", GENERATING, ids=lambda model: model.__name__)
@pytest.mark.parametrize("fields", INVALID, ids=str)
def test_neither_accepts_an_invalid_field(model: type[BaseModel], fields: dict[str, Any]) -> None:
    assert accepts(model, SMALL[model]) == (True, True)
    assert accepts(model, SMALL[model] | fields) == (False, False)


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (SubmitBody, {}),
        (SubmitBody, {"prompt": ""}),
        (SubmitBody, {"prompt": "a", "messages": HI}),
        (SubmitBody, {"messages": []}),
        (SubmitBody, {"prompt": "a", "top_k": -1}),
        (SubmitBody, {"prompt": "a", "metadata": {"": "x"}}),
        (SubmitBody, {"prompt": "a", "metadata": {"x": "y" * 513}}),
        (SubmitBody, {"prompt": "a", "user": "me"}),
        (SubmitBody, {"prompt": "a\0"}),
        (ChatWithTools, {"messages": []}),
        (CompletionBody, {"prompt": ""}),
        (ResponsesWithTools, {"input": ""}),
        (ResponsesWithTools, {"input": []}),
        (EmbeddingsBody, {"input": ""}),
        (EmbeddingsBody, {"input": []}),
        (EmbeddingsBody, {"input": [[]]}),
        (EmbeddingsBody, {"input": [-1]}),
        (EmbeddingsBody, {"input": ["x"] * 2049}),
        (EmbeddingsBody, {"input": "x", "encoding_format": "int8"}),
        (RerankBody, {"query": "hi", "documents": []}),
        (RerankBody, {"query": "hi", "documents": [""]}),
        (RerankBody, {"query": "hi", "documents": [{"txt": "a"}]}),
        (RerankBody, {"query": "hi", "documents": [{"text": 3}]}),
        (RerankBody, {"query": "", "documents": ["a"]}),
        (RerankBody, {"query": "hi", "documents": ["a"], "top_n": 0}),
    ],
)
def test_neither_accepts_a_body_without_a_usable_prompt(model: type[BaseModel], body: dict[str, Any]) -> None:
    assert accepts(model, body) == (False, False)


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (SubmitBody, {"messages": HI, "prompt": None}),
        (SubmitBody, {"prompt": "a", "stop": "x", "metadata": {"a": "b"}, "logit_bias": {"1": -100}}),
        (ChatWithTools, {"messages": HI, "stop": ["x"], "structured_outputs": {"json": '{"type":"object"}'}}),
        (ChatWithTools, {"messages": HI, "top_k": -1, "stream_options": {"continuous_usage_stats": True}}),
        (ResponsesWithTools, {"input": HI}),
        (EmbeddingsBody, {"input": [1, 2, 3]}),
        (EmbeddingsBody, {"input": [[1, 2], "x"]}),
        (RerankBody, {"query": "hi", "documents": ["a", {"text": "b"}], "top_n": 3}),
    ],
)
def test_both_accept_a_valid_body(model: type[BaseModel], body: dict[str, Any]) -> None:
    assert accepts(model, body) == (True, True)

"""The form of answers, end to end: JSON schemas, JSON mode, logprobs, and a grammar that gets stuck."""

import json
import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.fits_schema import assert_fits
from tests.support.gguf_copy import copy_gguf
from tests.support.processes import Process, Stage
from tests.support.served import Address, Served
from workers.demo.random_gguf import write_random_model

pytestmark = pytest.mark.ways("direct", reason="other files test plain and streamed answers both ways")

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["blue", "green"]},
        "done": {"type": "boolean"},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 2},
    },
    "required": ["colour", "done", "count", "tags"],
    "additionalProperties": False,
}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
REQUEST: Any = {"model": "m", "messages": [{"role": "user", "content": "dibo kufe"}], "max_tokens": 200}
LIST_OF_OBJECTS: Any = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "array", "items": {"type": "object"}, "minItems": 1}},
}
LONG_REQUEST: Any = REQUEST | {"max_tokens": 400}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("form"), PENSTOCK_ENGINE="llama", PENSTOCK_ADMISSION="bounds") as stage:
        yield stage


@pytest.fixture(scope="module")
def braceless(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Process:
    """A worker whose model cannot write a brace, so that no JSON object fits its vocabulary."""
    folder: Path = tmp_path_factory.mktemp("models")
    write_random_model(folder / "m.gguf")
    copy_gguf(folder / "m.gguf", folder / "braceless.gguf", pieces={"{": "no brace", "<0x7B>": "none here either"})
    stage.worker(PENSTOCK_MODEL=str(folder / "m.gguf"))
    return stage.worker(PENSTOCK_MODEL=str(folder / "braceless.gguf"))


@pytest.fixture(scope="module")
def common(stage: Stage, braceless: Process) -> Iterator[Served]:
    with Served(stage) as served:
        yield served


@pytest.fixture
def client(served: Address) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=8) as client:
        yield client


def test_answers_match_their_schema_at_any_temperature(client: OpenAI) -> None:
    def answer(seed: int) -> Any:
        return client.chat.completions.create(
            **REQUEST, response_format=RESPONSE_FORMAT, temperature=seed / 2, seed=seed
        )

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(answer, range(6)))
    for answer in answers:
        assert answer.choices[0].finish_reason == "stop"
        assert_fits(SCHEMA, answer.choices[0].message.content)
    assert len({answer.choices[0].message.content for answer in answers}) > 1


def test_a_stream_and_a_native_job_match_their_schema(client: OpenAI, served: Address) -> None:
    stream = client.chat.completions.create(**REQUEST, response_format=RESPONSE_FORMAT, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert_fits(SCHEMA, text)
    body = {"prompt": "dibo", "model": "m", "max_tokens": 200, "response_format": RESPONSE_FORMAT}
    job = served.http.post("/v1/jobs?wait_ms=30000", json=body).json()
    assert job["status"] == "succeeded", job
    assert_fits(SCHEMA, job["text"])


def test_json_mode_produces_a_json_object(client: OpenAI) -> None:
    answers = [
        client.chat.completions.create(**LONG_REQUEST, response_format={"type": "json_object"}, seed=seed)
        for seed in range(4)
    ]
    closed = [reply.choices[0].message.content for reply in answers if reply.choices[0].finish_reason == "stop"]
    assert closed
    assert all(isinstance(json.loads(text), dict) for text in closed if text is not None)
    assert all((reply.choices[0].message.content or "").startswith("{") for reply in answers)


def test_a_schema_that_cannot_be_compiled_is_a_client_error(client: OpenAI) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    with pytest.raises(
        openai.BadRequestError, match="response_format cannot be used: Invalid type: nonsense"
    ) as caught:
        client.chat.completions.create(**REQUEST, response_format=schema)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "response_format")


def test_a_stuck_grammar_fails_its_job_and_no_other(client: OpenAI, braceless: Process) -> None:
    request_fields = REQUEST | {"model": "braceless", "temperature": 0}
    unconstrained = client.chat.completions.create(**request_fields).choices[0].message.content
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(client.chat.completions.create, **request_fields) for _ in range(2)]
        with pytest.raises(openai.InternalServerError, match="GrammarStuck") as caught:
            client.chat.completions.create(**request_fields, response_format=LIST_OF_OBJECTS)
        assert caught.value.code == "job_failed"
        assert [other.result().choices[0].message.content for other in others] == [unconstrained, unconstrained]
    assert braceless.alive


def test_a_grammar_that_the_model_cannot_even_begin_is_a_client_error(client: OpenAI, braceless: Process) -> None:
    with pytest.raises(openai.BadRequestError, match="the grammar allows no token of the vocabulary"):
        client.chat.completions.create(**REQUEST | {"model": "braceless"}, response_format={"type": "json_object"})
    assert braceless.alive


def test_a_keyword_that_cannot_be_enforced_is_a_client_error_on_every_route(client: OpenAI, served: Address) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match=r"the keyword properties\.x\.uniqueItems is not supported"):
        client.chat.completions.create(**REQUEST, response_format=form)
    body = {"prompt": "dibo", "model": "m", "response_format": form}
    answer = served.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")


@pytest.mark.parametrize(
    ("response_format", "pattern"),
    [
        ({"type": "choice", "choice": ["yes", "no"]}, "yes|no"),
        ({"type": "regex", "regex": "[a-c]{3}[0-9]"}, "[a-c]{3}[0-9]"),
        ({"type": "grammar", "grammar": 'start: "a" ("," "b")~2'}, "a,b,b"),
    ],
)
def test_a_native_job_is_held_to_choices_a_pattern_or_a_grammar(
    served: Address, response_format: dict[str, Any], pattern: str
) -> None:
    body = {"prompt": "dibo", "model": "m", "max_tokens": 20, "response_format": response_format}
    job = served.http.post("/v1/jobs?wait_ms=30000", json=body).json()
    assert (job["status"], job["finish_reason"]) == ("succeeded", "stop"), job
    assert re.fullmatch(pattern, job["text"])


def test_the_tokens_of_a_chats_logprobs_join_to_its_answer(client: OpenAI) -> None:
    request_fields = REQUEST | {"max_tokens": 9, "temperature": 0}
    choice = client.chat.completions.create(**request_fields, logprobs=True, top_logprobs=3).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    for entry in choice.logprobs.content:
        assert bytes(entry.bytes or []) == entry.token.encode()
        assert entry.top_logprobs[0].token == entry.token
        assert len(entry.top_logprobs) == 3
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1.0001
    chunks = list(client.chat.completions.create(**request_fields, logprobs=True, top_logprobs=3, stream=True))
    streamed = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in choice.logprobs.content]
    assert client.chat.completions.create(**request_fields).choices[0].logprobs is None


def test_a_response_has_the_logprobs_of_the_same_chat_when_whole_streamed_or_retrieved(client: OpenAI) -> None:
    chat: Any = (
        client.chat.completions.create(**REQUEST | {"max_tokens": 9, "temperature": 0}, logprobs=True, top_logprobs=3)
        .choices[0]
        .logprobs
    )
    expected = [(entry.token, entry.logprob, [top.token for top in entry.top_logprobs]) for entry in chat.content]

    def essentials(logprobs: Any) -> list[Any]:
        return [(entry.token, entry.logprob, [top.token for top in entry.top_logprobs]) for entry in logprobs]

    request_fields: Any = {
        "model": "m",
        "input": REQUEST["messages"],
        "max_output_tokens": 9,
        "temperature": 0,
        "top_logprobs": 3,
        "include": ["message.output_text.logprobs"],
    }
    whole: Any = client.responses.create(**request_fields)
    assert essentials(whole.output[0].content[0].logprobs) == expected
    again: Any = client.responses.retrieve(whole.id, include=["message.output_text.logprobs"])
    assert again.output == whole.output
    events: Any = list(client.responses.create(**request_fields, stream=True))
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert essentials(done.logprobs) == expected
    assert essentials(events[-1].response.output[0].content[0].logprobs) == expected
    plain: Any = client.responses.create(
        **{name: request_fields[name] for name in request_fields if "include" != name != "top_logprobs"}
    )
    assert plain.output[0].content[0].logprobs == []


def test_the_logprobs_of_a_completion_are_parallel_lists(client: OpenAI) -> None:
    choice = client.completions.create(model="m", prompt="dibo", max_tokens=7, temperature=0, logprobs=2).choices[0]
    logprobs: Any = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    tokens_at = zip(logprobs.text_offset, logprobs.tokens, strict=True)
    assert all(choice.text[at:].startswith(token) for at, token in tokens_at)
    for token, number, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == number == max(top.values())
        assert len(top) == 2


def test_a_job_has_the_logprobs_of_the_same_chat(client: OpenAI, served: Address) -> None:
    request_fields = REQUEST | {"max_tokens": 5, "temperature": 0}
    chat: Any = client.chat.completions.create(**request_fields, logprobs=True, top_logprobs=1).choices[0].logprobs
    job = served.http.post("/v1/jobs?wait_ms=30000", json=request_fields | {"logprobs": 1}).json()
    assert job["logprobs"] == [entry.model_dump() for entry in chat.content]


@pytest.mark.parametrize(
    "request_fields",
    [{"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": 2}, {"logprobs": "yes"}],
)
def test_invalid_logprobs_fields_are_400(client: OpenAI, request_fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        client.chat.completions.create(**REQUEST, **request_fields)

"""LiteLLM: chats, streams, calls of tools, schemas, responses, Anthropic's route, and the error of a long prompt."""

import litellm
from check import BASE_URL, CITIES, KEY, MODEL, check, main

litellm.suppress_debug_info = True
WHERE = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": KEY, "max_tokens": 200, "temperature": 0}
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": list(CITIES)}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}}


@check("chat")
def _chat() -> None:
    answer = litellm.completion(messages=HELLO, **WHERE)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


@check("stream")
def _stream() -> None:
    assert len(list(litellm.completion(messages=HELLO, stream=True, **WHERE))) > 1


@check("calls of tools")
def _tools() -> None:
    answer = litellm.completion(messages=HELLO, tools=[TOOL], tool_choice="required", **WHERE)
    assert any(city in answer.choices[0].message.tool_calls[0].function.arguments for city in CITIES)


@check("JSON schema")
def _schema() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
    answer = litellm.completion(messages=HELLO, response_format=wanted, **WHERE)
    assert any(city in answer.choices[0].message.content for city in CITIES)


@check("responses")
def _responses() -> None:
    where = {name: WHERE[name] for name in ("model", "api_base", "api_key")}
    assert litellm.responses(input="hello", max_output_tokens=50, **where).output


@check("messages, through Anthropic's route")
def _messages() -> None:
    where = WHERE | {"model": f"anthropic/{MODEL}", "api_base": BASE_URL.removesuffix("/v1")}
    assert litellm.completion(messages=HELLO, **where).choices[0].message.content


@check("a prompt that is too long is told as such")
def _too_long() -> None:
    try:
        litellm.completion(messages=[{"role": "user", "content": "word " * 50_000}], **WHERE)
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("no ContextWindowExceededError")


main()

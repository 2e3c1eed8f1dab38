"""The introduction, the groups of routes and the examples of request bodies in /openapi.json."""

from typing import Any

INTRODUCTION = """\
A queue in front of a few GPUs that many users share. A request is admitted within bounds, or it is refused at once with
a time to come back; nothing waits without bounds.

Models answer on the native routes (**Jobs**), and on those of the OpenAI and Anthropic APIs, whose stock clients work
unchanged.

**Refusals.** A refused job is answered with status 503, or with 429 if its tenant has exceeded its own rate or budget.
The body is `{"status": "yield", "retry_hint_ms": 1200, "reason": "inflight_full"}`, with more fields, and the header
`Retry-After` tells the same in seconds. Come back after the hint.

**Errors.** Every other error has the body
`{"error": {"message": "...", "type": "...", "param": "...", "code": "..."}}`.

**Keys.** If this door requires API keys, send `Authorization: Bearer KEY`. To try a request on this page, enter the key
under *Authentication*.
"""

TAGS = {
    "Jobs": "The native API: submit a job, then poll it, wait for it or follow its events.",
    "OpenAI": "OpenAI's API, for its stock clients: chats, completions, responses, embeddings, files and batches.",
    "Anthropic": "Anthropic's Messages API, for its stock clients.",
    "Collections": "Documents that passages are found in, for the tenants of a door with a database.",
    "Operators": "Health and metrics.",
}

_CHAT = [{"role": "user", "content": "What is a penstock?"}]
_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

#: Examples of request bodies by path: name -> (summary, body). None names a model, which may be left out wherever one
#: model is served.
EXAMPLES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "/v1/jobs": {
        "prompt": ("A prompt", {"prompt": "Once upon a time", "max_tokens": 32}),
        "chat": (
            "A chat that must begin within two seconds and end within ten",
            {"messages": _CHAT, "max_tokens": 64, "start_within_ms": 2_000, "deadline_ms": 10_000},
        ),
        "schema": (
            "An answer that is valid by a JSON schema",
            {
                "prompt": "Ada is 36 years old. As JSON: ",
                "max_tokens": 64,
                "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON}},
            },
        ),
    },
    "/v1/quote": {"prompt": ("A prompt", {"prompt": "Once upon a time", "max_tokens": 32})},
    "/v1/chat/completions": {
        "chat": ("A chat", {"messages": _CHAT, "max_tokens": 64}),
        "stream": ("A chat, streamed", {"messages": _CHAT, "max_tokens": 64, "stream": True}),
        "tools": (
            "A chat with a tool",
            {
                "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
                "max_tokens": 64,
                "tools": [_WEATHER],
            },
        ),
    },
    "/v1/completions": {"prompt": ("A prompt", {"prompt": "Once upon a time", "max_tokens": 32})},
    "/v1/embeddings": {"texts": ("Two texts", {"input": ["a first text", "a second text"]})},
    "/v1/rerank": {
        "documents": (
            "Two documents",
            {"query": "What is a penstock?", "documents": ["A pipe to a turbine.", "A kind of bird."]},
        )
    },
    "/v1/responses": {"text": ("A text", {"input": "What is a penstock?", "max_output_tokens": 64})},
    "/v1/batches": {
        "batch": (
            "A batch of chats in an uploaded file",
            {"input_file_id": "file-ID", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
        )
    },
    "/v1/vector_stores": {"store": ("A vector store", {"name": "Handbook"})},
    "/v1/vector_stores/{store_id}/search": {
        "query": ("A query", {"query": "How many days of leave do I have?", "max_num_results": 5}),
    },
    "/v1/collections": {
        "model": ("A collection with the embedding model of the door", {"name": "handbook"}),
        "words": ("A collection that is searched by words alone", {"name": "handbook", "model": None}),
    },
    "/v1/collections/{name}/search": {
        "query": ("A query", {"query": "How many days of leave do I have?"}),
        "filter": (
            "A query of some documents only, within 50 ms",
            {"query": "days of leave", "filter": {"type": "eq", "key": "country", "value": "DE"}, "budget_ms": 50},
        ),
    },
    "/v1/messages": {"chat": ("A chat", {"messages": _CHAT, "max_tokens": 64})},
    "/v1/messages/count_tokens": {"chat": ("A chat", {"messages": _CHAT})},
}


def with_texts(spec: dict[str, Any]) -> None:
    """Add the introduction, the groups and the examples to an OpenAPI document."""
    spec["info"]["description"] = INTRODUCTION
    used = {tag for operations in spec["paths"].values() for one in operations.values() for tag in one.get("tags", [])}
    spec["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    for path, examples in EXAMPLES.items():
        content = spec["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        content["examples"] = {name: {"summary": summary, "value": body} for name, (summary, body) in examples.items()}

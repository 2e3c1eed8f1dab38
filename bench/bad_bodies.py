"""Measures the CPU time in which the door rejects, or accepts, the costliest bodies of 1 MiB on each route.

Run: `python -m bench.bad_bodies` (under a minute). Each body is parsed and validated, and an error is converted to its
response, as in a door process, but without HTTP; the figure is the CPU time of the thread, the least of five runs. The
aim for a body that is rejected is 20 ms, because all other requests of a door process wait for it. Some of the bodies
are found by a search: it keeps the costliest of random mixtures of numbers, texts, lists and objects.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import ValidationError

from bench.common import environment, print_environment, write_results
from web.anthropic.messages_schema import MessagesBody
from web.api.body import Body
from web.api.request_schema import SubmitBody
from web.gate.requests import BadFrame, read_request
from web.http.api_errors import ApiError, error_response, field_errors, invalid_value
from web.http.json_body import parse_json
from web.openai.chat_messages import MAX_TOOLS
from web.openai.chat_schema import ChatWithTools, CompletionBody
from web.openai.embeddings_schema import EmbeddingsBody
from web.openai.rerank_schema import RerankBody
from web.openai.responses_schema import ResponsesWithTools

AIM_MS = 20
SIZE = 1_048_576
ROUTES: dict[str, type[Body]] = {
    "/v1/jobs": SubmitBody,
    "/v1/chat/completions": ChatWithTools,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponsesWithTools,
    "/v1/messages": MessagesBody,
    "/v1/embeddings": EmbeddingsBody,
    "/v1/rerank": RerankBody,
}
_CHAT = '{"messages":[{"role":"user","content":"x"}],"tools":['
_FORMAT = '{"prompt":"x","response_format":{"type":"json_schema","json_schema":{"schema":'


def _repeat(begin: str, item: str, end: str, size: int = SIZE) -> bytes:
    """Return `begin`, as many `item`s as fit, separated by commas, and `end`."""
    count = (size - len(begin) - len(end)) // (len(item) + 1)
    return (begin + ",".join([item] * count) + end).encode()


def _fields(begin: str, value: str, end: str, size: int = SIZE) -> bytes:
    """Return an object with as many different fields of the value `value` as fit."""
    count = (size - len(begin) - len(end)) // (len(value) + 9)
    return (begin + ",".join(f'"{i:x}":{value}' for i in range(count)) + end).encode()


def _texts(begin: str, end: str, count: int) -> bytes:
    """Return a list of different texts with escapes."""
    return (begin + ",".join(f'"\\u00e9{i:x}"' for i in range(count)) + end).encode()


def _tools(parameters: str, last: str) -> bytes:
    """Return a chat with as many tools as a request may have: all with these parameters, but the last."""
    each = [
        f'{{"type":"function","function":{{"name":"f{i}","parameters":{parameters}}}}}' for i in range(MAX_TOOLS - 1)
    ]
    return f"{_CHAT}{','.join([*each, last])}]}}".encode()


def _nested(schema: str, depth: int, inner: str = "{}") -> str:
    """Return a schema inside `depth` others."""
    return schema * depth + inner + "}" * depth


def rejected_tools() -> dict[str, bytes]:
    """Return chats with tools that no route accepts, because of the last of them."""
    unsupported = '{"type":"function","function":{"name":"g","parameters":{"not":{"type":"null"}}}}'
    texts = ",".join(f'"{i}"' for i in range(250))
    numbers = ",".join(["1"] * 1_750)
    schemas = {
        "many names": '{"properties":{' + ",".join(f'"{i:x}":{{}}' for i in range(120)) + "}}",
        "nested schemas": _nested('{"items":', 135),
        "alternatives": '{"anyOf":[' + ",".join(["{}"] * 190) + "]}",
        "a list of texts": f'{{"enum":[{texts}]}}',
        "a list of numbers": f'{{"enum":[{numbers}]}}',
        "references": _nested('{"$ref":"#","items":', 62),
        "descriptions": json.dumps({"description": "x" * 7_900}),
    }
    bodies = {f"tools: {name}, then not": _tools(schema, unsupported) for name, schema in schemas.items()}
    inner = _nested('{"anyOf":[{"not":{"type":"null"}},', 1, "{}]")
    deep = _nested('{"properties":{"a_name_of_a_property":', 60, inner) + "}" * 60
    return bodies | {
        "tools: not, deep inside": _tools("{}", f'{{"type":"function","function":{{"name":"g","parameters":{deep}}}}}'),
        "tools: two of a name": _tools("{}", '{"type":"function","function":{"name":"f0"}}'),
        "tools: 10,000": _repeat(_CHAT, '{"type":"function","function":{"name":"f"}}', "]}", 480_000),
    }


def rejected_bodies() -> dict[str, bytes]:
    """Return bodies of 1 MiB that no route accepts, by name."""
    return {
        "[[[[": b"[" * SIZE,
        "{a:{a:": b'{"a":' * (SIZE // 5),
        "lists of depth 100": _repeat('{"prompt":[', "[" * 100 + "]" * 100, "]}"),
        "stop: numbers": _repeat('{"prompt":"x","stop":[', "1", "]}"),
        "stop: texts": _repeat('{"prompt":"x","stop":[', '""', "]}"),
        "repeated names": _repeat('{"prompt":"x",', '"a":1', "}"),
        "unknown fields": _fields('{"prompt":"x",', "1", "}"),
        "a number of a million digits": b'{"prompt":"x","max_tokens":' + b"9" * (SIZE - 28) + b"}",
        "numbers of 4,000 digits": _repeat('{"prompt":"x","stop":[', "9" * 4_000, "]}"),
        "numbers of 200 digits": _repeat('{"prompt":"x","stop":[', "9" * 200, "]}"),
        "escapes, then half of a pair": b'{"prompt":"' + b"\\u0041" * (SIZE // 6 - 9) + b'\\ud800"}',
        "halves of pairs": _repeat('{"prompt":"x","stop":[', '"\\ud800"', "]}"),
        "lists, then half of a pair": _repeat('{"prompt":[', "[]", ',"\\ud800"]}'),
        "messages: numbers": _repeat('{"messages":[', "1", "]}"),
        "messages: {}": _repeat('{"messages":[', "{}", "]}"),
        "messages: unknown fields": _repeat('{"messages":[', '{"a":1,"b":2,"c":3}', "]}"),
        "messages: one with many fields": _fields('{"messages":[{"role":"user",', "1", "}]}"),
        "metadata": _fields('{"prompt":"x","metadata":{', '""', "}}"),
        "logit_bias": _fields('{"prompt":"x","logit_bias":{', '""', "}}"),
        "content parts": _repeat('{"messages":[{"role":"user","content":[', "{}", "]}]}"),
        "input: numbers": _repeat('{"input":[', "1.5", "]}"),
        "input: lists": _repeat('{"input":[', "[1]", "]}"),
        "input: {}": _repeat('{"input":[', "{}", "]}"),
        "include": _repeat('{"input":"x","include":[', '""', "]}"),
        "a schema of many fields": _fields(f"{_FORMAT}{{", "1", "}}}}"),
        "a schema with a long list": _repeat(f'{_FORMAT}{{"enum":[', "1", "]}}}}"),
        "response_format: unknown fields": _fields('{"prompt":"x","response_format":{', "1", "}}"),
        "stream_options: unknown fields": _fields('{"prompt":"x","stream_options":{', "1", "}}"),
        "text: unknown fields": _fields('{"input":"x","text":{', "null", "}}"),
        "tools": _repeat('{"messages":[{"role":"user","content":"x"}],"tools":[', "{}", "]}"),
        "null fields": _fields('{"prompt":"x","input":"x",', "null", "}"),
        "a long name": b'{"prompt":"x","' + b"n" * (SIZE - 20) + b'":1}',
        # These nearly use up the budget of the parser, and are rejected after it.
        "within the budget: numbers": _repeat('{"messages":[', "1", "]}", 480_000),
        "within the budget: texts": _texts('{"messages":[', "]}", 40_000),
        "within the budget: fields": _fields('{"prompt":{', '"y"', "}}", 190_000),
        "within the budget: lists": _repeat('{"prompt":[', "[1]", "]}", 100_000),
    } | rejected_tools()


def accepted_bodies() -> dict[str, bytes]:
    """Return large bodies that at least one route accepts, by name."""
    message = {"role": "user", "content": "x" * 490}
    tokens = list(range(1_000, 1_100))
    return {
        "a prompt of 1 MB": json.dumps({"prompt": "word " * 200_000}).encode(),
        "a prompt of 0.5 MB of code": json.dumps({"prompt": 'f({"a": [1, 2]}, "\\n");\n' * 15_000}).encode(),
        "2,000 messages": json.dumps({"messages": [message] * 2_000}).encode(),
        "2,048 texts to embed": json.dumps({"input": ["x" * 490] * 2_048}).encode(),
        "2,048 texts to embed, as token ids": json.dumps({"input": [tokens] * 1_700}).encode(),
    }


def handle(route: type[Body] | None, data: bytes) -> str:
    """Parse and validate a body, or a frame of the gate if `route` is None; return the error's JSON, or "" for none."""
    try:
        if route is None:
            read_request(data)
        else:
            route.model_validate(parse_json(data))
    except ApiError as error:
        return json.dumps(error_response(error).body)
    except ValidationError as error:
        return json.dumps(error_response(invalid_value(field_errors(error))).body)
    except BadFrame as error:
        return str(error)
    return ""


def cpu_ms(call: Callable[[], Any], runs: int = 5) -> float:
    """Return the least CPU time of this thread for one call, in ms."""
    least_ns = min(_once_ns(call) for _ in range(runs))
    return least_ns / 1e6


def _once_ns(call: Callable[[], Any]) -> int:
    begin_ns = time.thread_time_ns()
    call()
    return time.thread_time_ns() - begin_ns


def _random_value(rng: random.Random, depth: int) -> str:
    leaves = ("1", "-1.5e-300", '""', '"\\u00e9x"', "null", "true", "9" * rng.choice([1, 20, 300]), f'"{rng.random()}"')
    if depth == 0 or rng.random() < 0.4:
        return rng.choice(leaves)
    items = [_random_value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    if rng.random() < 0.5:
        return f"[{','.join(items)}]"
    return "{" + ",".join(f'"{rng.randint(0, 10**6):x}":{item}' for item in items) + "}"


def searched(seed: int, tries: int) -> dict[str, bytes]:
    """Return the costliest of `tries` random bodies for each route."""
    rng = random.Random(seed)
    names = ("prompt", "messages", "stop", "input", "metadata", "logit_bias", "response_format", "tools", "text", "x")
    worst: dict[str, tuple[float, bytes]] = {}
    for _ in range(tries):
        item = _random_value(rng, rng.randint(0, 4))
        begin = "{" + ",".join(f'"{name}":"x"' for name in rng.sample(names, 2)) + f',"{rng.choice(names)}":['
        data = _repeat(begin, item, "]}", rng.choice([SIZE, SIZE // 2, SIZE // 4, SIZE // 8]))
        for name, route in ROUTES.items():
            spent_ms = cpu_ms(partial(handle, route, data), 1)
            if spent_ms > worst.get(name, (0.0, b""))[0]:
                worst[name] = (spent_ms, data)
    return {f"found for {name}: {data[:60].decode()}…": data for name, (_, data) in worst.items()}


def main() -> None:
    """Measure all bodies on all routes, print the costliest, and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--tries", type=int, default=100)
    chosen = options.parse_args()
    facts = environment(chosen.seed)
    print_environment(facts)
    figures: dict[str, dict[str, float]] = {}
    kinds = {"rejected": rejected_bodies() | searched(chosen.seed, chosen.tries), "accepted": accepted_bodies()}
    for kind, bodies in kinds.items():
        for body, data in bodies.items():
            costs = {name: cpu_ms(partial(handle, route, data)) for name, route in ROUTES.items()}
            costs["gate"] = cpu_ms(partial(handle, None, data))
            figures[f"{kind}: {body}"] = costs
            print(f"{max(costs.values()):8.1f} ms  {kind}: {body}")
    write_results("bad-bodies", facts, {"aim_ms": AIM_MS, "cpu_ms": figures})


if __name__ == "__main__":
    main()

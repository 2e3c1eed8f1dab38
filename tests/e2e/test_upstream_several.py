"""Several answers of an upstream, to one prompt or to several: OpenAI's package, native jobs, batches and costs."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

import openai
import pytest

from shared.accounts.routes import Pools
from shared.accounts.tenants import Tenants
from shared.accounts.usage import UsageRecords
from shared.store import keys
from tests.support.processes import wait_for
from tests.support.routed import SPENT_KEYS
from tests.support.served import Served, upstream_door
from tests.support.upstream_server import UpstreamServer, answers_to

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 12}
TEXT: dict[str, Any] = {"model": "m", "prompt": ["once upon a time", "there was"], "max_tokens": 12}
#: The server's answers if there are several, and its counts for a prompt and for an answer.
WORDS = ["a0 a1 a2 ", "b0 b1 b2 ", "c0 c1 c2 ", "d0 d1 d2 "]
PROMPT_TOKENS, ANSWER_TOKENS = 21, 3
_NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer() as server:
        yield server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, server: UpstreamServer) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("several")
    with upstream_door(folder, server.url, door={"PENSTOCK_ENGINE": "llama"}) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    """A client that is a tenant of its own in each test."""
    headers = {"X-Tenant": f"tenant-{next(_NUMBERS)}"}
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=30, default_headers=headers
    ) as client:
        yield client


def tenant_of(client: openai.OpenAI) -> str:
    return str(client.default_headers["X-Tenant"])


def read_stream(chunks: Any) -> tuple[list[str], list[str], int]:
    """Return the text and the finish reason of each choice, by index, and the completion tokens."""
    texts: dict[int, str] = defaultdict(str)
    reasons: dict[int, str] = {}
    tokens = 0
    for chunk in chunks:
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        for choice in chunk.choices:
            texts[choice.index] += (choice.text if chunk.object == "text_completion" else choice.delta.content) or ""
            if choice.finish_reason:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    return [texts[at] for at in sorted(texts)], [reasons[at] for at in sorted(reasons)], tokens


@pytest.mark.parametrize("behaviour", ["answer", "one by one", "whole"])
def test_all_choices_reach_the_package_whole_and_as_a_stream_and_are_paid_once(
    client: openai.OpenAI, served: Served, server: UpstreamServer, behaviour: str
) -> None:
    tenant, before = tenant_of(client), len(server.bodies)
    Pools(served.stage.client).change("m", {"prompt_price_micro": 1_000, "answer_price_micro": 2_000})
    Tenants(served.stage.client).change(tenant, {"tokens_per_day": 10_000})
    server.will(*[behaviour] * 4)
    usage: Any = {"stream_options": {"include_usage": True}, "stream": True}
    reason = "stop" if behaviour == "whole" else "length"
    chat = client.chat.completions.create(**CHAT, n=3)
    assert [(one.index, one.message.content, one.finish_reason) for one in chat.choices] == [
        (at, WORDS[at], reason) for at in range(3)
    ]
    chat_stream = client.chat.completions.create(**CHAT, n=3, **usage)
    assert read_stream(chat_stream) == (WORDS[:3], [reason] * 3, 3 * ANSWER_TOKENS)
    text = client.completions.create(**TEXT, n=2)
    assert [(one.index, one.text, one.finish_reason) for one in text.choices] == [
        (at, WORDS[at], reason) for at in range(4)
    ]
    text_stream = client.completions.create(**TEXT, n=2, **usage)
    assert read_stream(text_stream) == (WORDS, [reason] * 4, 4 * ANSWER_TOKENS)
    bodies = server.bodies[before:]
    assert [(body.get("n"), body["max_tokens"]) for body in bodies] == [(3, 12), (3, 12), (2, 12), (2, 12)]
    assert [body.get("prompt") for body in bodies] == [None, None, TEXT["prompt"], TEXT["prompt"]]
    wait_for(lambda: served.stage.inflight() == 0, "the last ledger to be written")
    # The server's own ledger: each prompt once, and all words.
    prompt, answer = 4 * PROMPT_TOKENS, sum(answers_to(body) for body in bodies) * ANSWER_TOKENS
    book = UsageRecords(served.stage.client)
    (amounts,) = (row.amounts for row in book.read_day(book.today()) if row.tenant == tenant)
    assert (amounts.prompt_tokens, amounts.completion_tokens) == (prompt, answer)
    assert amounts.cost_micro == prompt + 2 * answer
    (spent,) = served.stage.client.keys(SPENT_KEYS)
    assert served.stage.client.hget(spent, f"m|{tenant}") == str(prompt + 2 * answer).encode()
    day, *_ = served.stage.client.hget(keys.tenant(tenant), "budget").split()[1:]
    assert int(day) == prompt + answer


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("asked", "refuses", "message", "param"),
    [
        (CHAT | {"n": 3}, {}, "the upstream gave 1 of the 3 answers that were asked for", "n"),
        (TEXT, {}, "the upstream gave 1 of the 2 answers that were asked for", "prompt"),
        (CHAT | {"n": 3}, {"n": "only one completion is supported"}, "only one completion is supported", None),
    ],
)
def test_an_upstream_that_cannot_give_several_answers_is_an_error_and_never_fewer_choices(
    client: openai.OpenAI, server: UpstreamServer, asked: Any, refuses: Any, message: str, param: str, streams: bool
) -> None:
    server.refuses = refuses
    if not refuses:
        server.will("one answer")
    create: Any = client.chat.completions.create if "messages" in asked else client.completions.create
    with pytest.raises(openai.APIError, match=message) as caught:
        list(create(**asked, stream=streams))
    server.refuses = {}
    assert (caught.value.code, caught.value.param) == ("upstream_rejected", param)


def test_choices_that_break_off_are_shown_once_or_not_at_all(
    client: openai.OpenAI, served: Served, server: UpstreamServer
) -> None:
    server.will("cut")
    assert [one.message.content for one in client.chat.completions.create(**CHAT, n=2).choices] == WORDS[:2]
    server.may_cut.clear()
    server.will("cut")
    shown: list[str] = []
    stream = client.chat.completions.create(**CHAT, n=2, stream=True)

    def read_on() -> None:
        for chunk in stream:
            shown.extend(choice.delta.content or "" for choice in chunk.choices)
            if any(shown):
                server.may_cut.set()

    with pytest.raises(openai.APIError) as caught:
        read_on()
    server.may_cut.set()
    assert (caught.value.code, "".join(shown)) == ("upstream_lost", "a0 ")
    wait_for(lambda: served.stage.inflight() == 0, "the job to be canceled")


def test_a_stream_of_choices_that_is_closed_closes_the_request(client: openai.OpenAI, server: UpstreamServer) -> None:
    before = server.closed
    server.will("endless")
    stream = client.chat.completions.create(**CHAT | {"max_tokens": 10_000}, n=4, stream=True)
    next(iter(stream))
    stream.close()
    wait_for(lambda: server.closed == before + 1, "the upstream to see that the request was closed")


def test_an_upstream_that_ignores_the_length_is_cut_off_in_each_choice(
    client: openai.OpenAI, server: UpstreamServer
) -> None:
    server.will("endless")
    answer = client.chat.completions.create(**CHAT | {"max_tokens": 2}, n=3)
    expected = [("".join(f"{name}{word} " for word in range(3)), "length") for name in "abc"]
    assert [(one.message.content, one.finish_reason) for one in answer.choices] == expected


def test_all_answers_count_in_budgets_when_a_job_is_admitted(client: openai.OpenAI, served: Served) -> None:
    Tenants(served.stage.client).change(tenant_of(client), {"tokens_per_day": 60})
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**CHAT, n=5)
    assert caught.value.code == "budget_exhausted"
    assert len(client.chat.completions.create(**CHAT, n=2).choices) == 2


def test_a_native_job_returns_all_answers_but_cannot_choose_among_them(
    client: openai.OpenAI, served: Served, server: UpstreamServer
) -> None:
    headers = {"X-Tenant": tenant_of(client)}
    body = {"prompt": "once upon a time", "max_tokens": 12, "n": 2, "seed": 3}
    job = served.http.post("/v1/jobs?wait_ms=20000", json=body | {"pick": "all"}, headers=headers).json()
    told = [(one["index"], one["text"], one["finish_reason"], one["mean_logprob"]) for one in job["candidates"]]
    assert told == [(at, WORDS[at], "length", None) for at in range(2)]
    assert (job["text"], server.bodies[-1]["n"]) == (WORDS[0], 2)
    events = served.http.get(f"/v1/jobs/{job['id']}/events", headers=headers).text
    data = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: ") and '"candidate"' in line]
    texts = ["".join(one["text"] for one in data if one.get("candidate") == at) for at in range(2)]
    assert texts == WORDS[:2]
    refused = served.http.post("/v1/jobs", json=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


def test_a_line_of_a_batch_gets_all_its_answers(client: openai.OpenAI) -> None:
    lines = [
        {"custom_id": "chat", "url": "/v1/chat/completions", "method": "POST", "body": CHAT | {"n": 2}},
        {"custom_id": "one", "url": "/v1/chat/completions", "method": "POST", "body": CHAT},
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    done = wait_for(
        lambda: (now := client.batches.retrieve(batch.id)).status == "completed" and now, "the end of the batch"
    )
    answers = [json.loads(line) for line in client.files.content(done.output_file_id or "").text.splitlines()]
    assert {
        one["custom_id"]: [choice["message"]["content"] for choice in one["response"]["body"]["choices"]]
        for one in answers
    } == {"chat": WORDS[:2], "one": ["w0 w1 w2 "]}

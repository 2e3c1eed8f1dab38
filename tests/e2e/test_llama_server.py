"""The end-to-end tests of OpenAI's routes once more, with a real llama-server behind the door: `make test-upstream`.

Each test of the other files either runs here with this file's `common`, or is left out with a reason, which is printed.
"""

import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.e2e import test_conversations as conversations
from tests.e2e import test_langchain as langchain
from tests.e2e import test_openai_package as package
from tests.e2e import test_openai_responses as responses
from tests.support.bert import write_bert
from tests.support.left_out import FILES, FILES_LEFT_OUT, LEFT_OUT
from tests.support.llama_server import LLAMA_SERVER, WHY_SKIPPED, LlamaServer
from tests.support.processes import Stage, in_time, wait_for
from tests.support.served import Address, Served
from workers.demo import demo_model_path
from workers.demo.vocabulary import TOOL_CHAT_TEMPLATE

pytestmark = [
    pytest.mark.skipif(not LLAMA_SERVER, reason=WHY_SKIPPED),
    pytest.mark.ways("direct", reason="what is behind the door does not depend on the way to it"),
]

# These run here as they are.
test_a_missed_deadline_is_504 = package.test_a_missed_deadline_is_504_and_is_not_retried
test_a_repeated_chat_call_gets_a_job_of_its_own = package.test_a_repeated_chat_call_always_gets_a_job_of_its_own
test_a_timeout_of_one_second_leaves_time = package.test_a_timeout_of_one_second_leaves_time_for_an_answer
test_closing_a_stream_ends_its_job = package.test_closing_a_stream_ends_its_job_at_once
test_the_package_retries_a_yield = package.test_the_package_retries_a_yield_if_retries_are_on
test_closing_a_stream_of_langchain = langchain.test_closing_a_stream_early_cancels_its_job
test_a_deleted_response_is_404 = conversations.test_a_deleted_background_response_is_404_when_its_request_is_repeated
test_no_unknown_response_is_continued = conversations.test_an_unknown_response_cannot_be_continued
test_no_other_tenants_response = conversations.test_another_tenants_response_is_answered_like_an_unknown_one
test_a_background_response_is_stored = conversations.test_a_background_response_has_to_be_stored
test_an_unknown_response_raises = responses.test_an_unsupported_or_unknown_request_raises_the_packages_error_class

#: The fixture of LangChain's tests.
model = langchain.model

FOR_VECTORS = {"PENSTOCK_ENGINE": "upstream", "PENSTOCK_UPSTREAM_MODEL": "vectors"}
#: The demo model's template for tools, with a mark before a call that is one token: a bias for it makes the model call.
CALLS = TOOL_CHAT_TEMPLATE.replace("<tool_call>\n", "~").replace("\n</tool_call>", "")
#: How soon a cancel must have reached the server.
CANCEL_S = 0.25
STORY = "Once upon a time there was a little girl named Lily."


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with LlamaServer(demo_model_path(), tmp_path_factory.mktemp("llama"), slots=4) as server:
        yield server


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory, upstream: LlamaServer) -> Iterator[Served]:
    """A door whose model `sim` is the demo model of a llama-server."""
    environ = {
        "PENSTOCK_ENGINE": "upstream",
        "PENSTOCK_UPSTREAM_URL": upstream.url,
        "PENSTOCK_UPSTREAM_MODEL": "demo",
        "PENSTOCK_MODEL_NAME": "sim",
        "PENSTOCK_ADMISSION": "bounds",
        "PENSTOCK_LEASE_MS": "2500",
    }
    with Stage(tmp_path_factory.mktemp("stage"), **environ) as stage:
        stage.worker()
        with Served(stage) as served:
            yield served


def chat(client: OpenAI, **fields: object) -> object:
    body = {"model": "sim", "messages": [{"role": "user", "content": STORY}], "max_tokens": 12} | fields
    return client.chat.completions.create(**body)  # type: ignore[call-overload]


def test_every_other_test_of_openais_routes_runs_here_or_is_left_out_for_a_reason() -> None:
    ours = {value for value in globals().values() if inspect.isfunction(value)}
    for file in FILES:
        module = importlib.import_module(f"tests.e2e.{file}")
        for name, function in vars(module).items():
            if name.startswith("test_") and inspect.isfunction(function) and function not in ours:
                print(f"left out: {name}: {LEFT_OUT[name]}")
    here = Path(__file__)
    for path in sorted(here.parent.glob("test_*.py")):
        with_package = "client: OpenAI" in (text := path.read_text()) or "client: openai.OpenAI" in text
        if with_package and not path.stem.startswith(here.stem):
            assert path.stem in FILES or path.stem in FILES_LEFT_OUT, f"{path.stem} is neither run nor left out"
    for file, reason in FILES_LEFT_OUT.items():
        print(f"left out: tests/e2e/{file}.py: {reason}")


def test_an_answer_is_the_same_as_the_servers_own_with_its_counts(client: OpenAI, upstream: LlamaServer) -> None:
    with OpenAI(base_url=upstream.url, api_key="none", max_retries=0) as direct:
        fields = {"temperature": 0, "seed": 3, "max_tokens": 20}
        theirs, ours = (chat(one, **fields) for one in (direct, client))
    assert ours.choices[0].message.content == theirs.choices[0].message.content  # type: ignore[attr-defined]
    assert ours.choices[0].finish_reason == theirs.choices[0].finish_reason  # type: ignore[attr-defined]
    assert ours.usage.prompt_tokens == theirs.usage.prompt_tokens  # type: ignore[attr-defined]
    assert ours.usage.completion_tokens == theirs.usage.completion_tokens  # type: ignore[attr-defined]


def test_a_stream_has_the_whole_text_and_its_usage(client: OpenAI) -> None:
    whole = chat(client, temperature=0, max_tokens=30)
    chunks = list(chat(client, temperature=0, max_tokens=30, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content  # type: ignore[attr-defined]
    assert len(pieces) > 2
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[attr-defined]


def test_a_completion_and_a_response_are_generated(client: OpenAI) -> None:
    answer = client.completions.create(model="sim", prompt=STORY, max_tokens=12)
    assert answer.usage is not None
    assert 1 <= answer.usage.completion_tokens <= 12
    assert answer.choices[0].text
    response = client.responses.create(model="sim", input=STORY, max_output_tokens=12)
    assert response.output_text
    with client.responses.stream(model="sim", input=STORY, max_output_tokens=12) as stream:
        assert "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def test_a_schema_is_kept_and_logprobs_arrive(client: OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "color", "schema": {"enum": ["red", "blue"]}}}
    answer = chat(client, response_format=form, max_tokens=40)
    assert answer.choices[0].message.content in {'"red"', '"blue"'}  # type: ignore[attr-defined]
    with_logprobs = chat(client, logprobs=True, top_logprobs=2, max_tokens=3)
    assert len(with_logprobs.choices[0].logprobs.content) == 3  # type: ignore[attr-defined]


def test_tools_reach_the_server_on_each_route_and_its_calls_the_client(
    client: OpenAI, served: Address, tmp_path: Path
) -> None:
    tool: dict[str, Any] = {"name": "weather", "description": "The weather"}
    schema = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    # As Any, because the packages have a type of their own for each of these dictionaries.
    function: Any = tool | {"parameters": schema}
    for_claude: Any = tool | {"input_schema": schema}
    told: Any
    response: Any
    asked: dict[str, Any] = {"model": "caller", "max_tokens": 8, "messages": [{"role": "user", "content": STORY}]}
    with LlamaServer(demo_model_path(), tmp_path, more=("--chat-template", CALLS)) as server:
        worker = served.stage.worker(PENSTOCK_UPSTREAM_URL=server.url, PENSTOCK_MODEL_NAME="caller")
        with OpenAI(base_url=server.url, api_key="none", max_retries=0) as direct:
            plain: Any = direct.chat.completions.create(**asked).usage
            told = direct.chat.completions.create(**asked, tools=[{"type": "function", "function": function}]).usage
        response = client.responses.create(
            model="caller", input=STORY, max_output_tokens=16, tools=[{"type": "function"} | function]
        )
        with importlib.import_module("anthropic").Anthropic(
            base_url=served.url, api_key="none", max_retries=0
        ) as claude:
            message = claude.messages.create(**asked, tools=[for_claude])
        counts = {
            told.prompt_tokens,
            response.usage.input_tokens,
            message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0),
        }
        assert counts == {told.prompt_tokens}
        assert told.prompt_tokens > plain.prompt_tokens
        # The model itself would write text until its tokens are used up, which llama-server allows before a call.
        asked |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required", "max_tokens": 200}
        asked |= {"logit_bias": {str(server.token_of("~")): 100}, "temperature": 0}
        call = client.chat.completions.create(**asked).choices[0].message.tool_calls[0]
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["unit"] in {"C", "F"}
        streamed = [chunk.choices[0].delta.tool_calls for chunk in client.chat.completions.create(**asked, stream=True)]
        pieces = [piece.function for calls in streamed for piece in calls or () if piece.index == 0]
        assert "".join(piece.name or "" for piece in pieces) == "weather"
        assert "".join(piece.arguments or "" for piece in pieces) == call.function.arguments
        worker.terminate()
        assert worker.exit_code() == 0


@pytest.mark.parametrize("streams", [False, True])
def test_several_answers_are_those_of_single_requests_and_each_is_counted(
    client: OpenAI, upstream: LlamaServer, streams: bool
) -> None:
    asked: dict[str, Any] = {"model": "sim", "prompt": [STORY, "There was a dog."], "max_tokens": 8, "temperature": 0}
    with OpenAI(base_url=upstream.url, api_key="none", max_retries=0) as direct:
        singles = [direct.completions.create(**asked | {"prompt": prompt}) for prompt in asked["prompt"]]
    if streams:
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        texts, usage = ["", "", "", ""], None
        for chunk in client.completions.create(**asked, n=2, **options):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    else:
        whole = client.completions.create(**asked, n=2)
        texts, usage = [choice.text for choice in whole.choices], whole.usage
    assert texts == [single.choices[0].text for single in singles for _ in range(2)]
    assert usage is not None
    counts = [single.usage for single in singles if single.usage]
    assert usage.prompt_tokens == sum(count.prompt_tokens for count in counts)
    assert usage.completion_tokens == 2 * sum(count.completion_tokens for count in counts)


def test_more_answers_than_the_server_has_slots_are_refused_with_its_message(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="n") as refused:
        chat(client, n=9)
    assert refused.value.code == "upstream_rejected"
    assert [choice.index for choice in chat(client, n=3).choices] == [0, 1, 2]  # type: ignore[attr-defined]


def test_a_conversation_is_continued(client: OpenAI) -> None:
    first = client.responses.create(model="sim", input=STORY, max_output_tokens=12, temperature=0)
    second = client.responses.create(
        model="sim", input="And then?", previous_response_id=first.id, max_output_tokens=12, temperature=0
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"n": 2}, "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": "word " * 4_000}]}, "upstream_rejected"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nope"}}}},
            "upstream_rejected",
        ),
    ],
)
def test_a_wrong_request_gets_the_servers_message_at_once(client: OpenAI, fields: dict[str, object], code: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **fields)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["code"] == code
    assert caught.value.body["message"]


def test_a_cancel_frees_the_servers_slot_within_250_ms(client: OpenAI, served: Address, upstream: LlamaServer) -> None:
    # A text with a bias against its end continues until the context is full.
    endless: dict[str, Any] = {"max_tokens": 1_900, "logit_bias": {"1": -100}}

    def freed_after(cancel: Callable[[], object]) -> float:
        """Cancel an answer that is being computed; return the seconds until its slot is free."""
        wait_for(lambda: upstream.busy_slots() == 1, "the server to compute the answer")
        began_s = monotonic()
        cancel()
        wait_for(lambda: upstream.busy_slots() == 0, "the server to stop computing")
        took_s = monotonic() - began_s
        print(f"the slot was free {1000 * took_s:.0f} ms after the cancel")
        return took_s

    def attempt() -> Iterator[tuple[float, float]]:
        stream = client.completions.create(model="sim", prompt=STORY, stream=True, **endless)
        next(iter(stream))
        yield freed_after(stream.close), CANCEL_S
        job = served.submit(model="sim", prompt=STORY, **endless).json()
        yield freed_after(lambda: served.http.delete(job["urls"]["self"])), CANCEL_S

    in_time(attempt)


def test_a_server_that_is_killed_and_comes_back_costs_no_job_anything(
    served: Address, client: OpenAI, upstream: LlamaServer
) -> None:
    upstream.kill()
    with ThreadPoolExecutor(4) as pool:
        patient = client.with_options(timeout=60, max_retries=20)
        asked = [pool.submit(chat, patient, max_tokens=8) for _ in range(8)]
        wait_for(lambda: served.stage.store.snapshot().live_models == [], "the worker to be no longer live")
        upstream.start()
        answers = [future.result(60) for future in asked]
    assert all(answer.choices[0].message.content for answer in answers)  # type: ignore[attr-defined]


def test_embeddings_are_the_servers_own(tmp_path: Path) -> None:
    write_bert(tmp_path / "vectors.gguf")
    texts = ["ba dedi", "foku gali muna"]
    with (
        LlamaServer(tmp_path / "vectors.gguf", tmp_path, slots=2, ctx=64, more=("--embeddings",)) as server,
        Stage(tmp_path, **(FOR_VECTORS | {"PENSTOCK_UPSTREAM_URL": server.url})) as stage,
        OpenAI(base_url=server.url, api_key="none", max_retries=0) as direct,
    ):
        stage.worker()
        with Served(stage) as served, OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            theirs, ours = (one.embeddings.create(model="vectors", input=texts) for one in (direct, client))
            assert [item.embedding for item in ours.data] == [pytest.approx(item.embedding) for item in theirs.data]
            assert ours.usage.prompt_tokens == theirs.usage.prompt_tokens
        stage.assert_sound()

"""OpenAI's routes over a real store: the form of answers and streams, and the job ends that are errors."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.jobs.job import ClaimRef
from shared.jobs.outcomes import Outcome
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.answers import answer_in_two_attempts
from tests.support.builders import MODEL, a_job, admitted, heartbeat, reconfigure
from tests.support.door import a_door, fault, refused, run_next, serve, settle, worker, worker_that_restarts
from web.openapi import compatible_models

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


def answer_with(store: Store, *texts: str, **ending: Any) -> Callable[[ClaimRef], None]:
    """Return what a worker does with a job: append these texts, then settle."""

    def act(held: ClaimRef) -> None:
        for count, text in enumerate(texts, 1):
            store.append([(held, text, count)])
        settle(store, held, **({"text": "".join(texts)} | ending))

    return act


def chunks(text: str) -> list[Any]:
    """Return the data of a stream's events; the last is [DONE] if the stream ended without an error."""
    data = [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]
    return [piece if piece == "[DONE]" else json.loads(piece) for piece in data]


def text_of(stream: list[Any]) -> str:
    """Join the text of a chat's chunks."""
    choices = [choice for chunk in stream if isinstance(chunk, dict) for choice in chunk.get("choices", [])]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def test_a_chat_is_answered_whole(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "Hello ", "you")):
        response = client.post(CHAT, json={"model": "m", "messages": HI, "max_tokens": 20})
    assert response.status_code == 200
    body = response.get_json()
    compatible_models.Completion.model_validate(body)
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "logprobs": None,
            "finish_reason": "length",
            "message": {"role": "assistant", "content": "Hello you", "refusal": None},
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "total_tokens": 30,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert response.headers["x-deadline-ms"] == "120000"


def test_a_completion_has_sixteen_tokens_by_default(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "and so on")):
        response = client.post("/v1/completions", json={"prompt": "Once"})
    assert response.get_json()["choices"][0]["text"] == "and so on"
    assert store.jobs("default").jobs[0].max_tokens == 16


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": HI, "max_tokens": 32_000}),
        ("chat/completions", {"messages": HI, "max_completion_tokens": 64}),
        ("completions", {"prompt": "hi", "max_tokens": 65}),
        ("responses", {"input": "hi", "max_output_tokens": 32_000}),
    ],
)
def test_a_length_above_the_context_asks_for_an_answer_up_to_the_context(
    client: FlaskClient, store: Store, path: str, body: dict[str, Any]
) -> None:
    """The prompt has at least one token, so at most 63 of 64 are left."""
    serve(store, facts={"n_ctx": "64"})
    seen = []

    def act(held: ClaimRef) -> None:
        view = store.touch(held.id)
        assert view is not None
        seen.append(view.max_tokens)
        settle(store, held, text="a", finish_reason="length")

    with worker(store, act):
        assert client.post(f"/v1/{path}", json={"model": "m"} | body).status_code == 200
    assert seen == [63]


def test_a_chat_is_streamed_in_chunks_of_its_text(client: FlaskClient, store: Store) -> None:
    body = {"messages": HI, "stream": True, "stream_options": {"include_usage": True}}
    with worker(store, answer_with(store, "a", "b\n\n", "ž")):
        response = client.post(CHAT, json=body)
        stream = chunks(response.text)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert response.headers["x-deadline-ms"] == "600000"
    assert stream[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(stream) == "ab\n\nž"
    assert stream[-1] == "[DONE]"
    assert (stream[-2]["choices"], stream[-2]["usage"]["total_tokens"]) == ([], 30)
    assert stream[-3]["choices"][0]["finish_reason"] == "length"
    assert all(chunk["usage"] is None for chunk in stream[:-2])
    assert len({chunk["id"] for chunk in stream[:-1]}) == 1


def test_without_include_usage_no_chunk_has_a_usage(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "a")):
        stream = chunks(client.post(CHAT, json={"messages": HI, "stream": True}).text)
    assert all("usage" not in chunk for chunk in stream[:-1])


@pytest.mark.parametrize("route", [CHAT, "/v1/completions"])
def test_every_chunk_of_a_stream_counts_the_tokens_so_far_if_the_client_asks_for_it(
    client: FlaskClient, store: Store, route: str
) -> None:
    body: dict[str, Any] = {"messages": HI} if route == CHAT else {"prompt": "hi"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    with worker(store, answer_with(store, "a", "b", "c")):
        stream = chunks(client.post(route, json=body | {"stream": True, "stream_options": options}).text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in stream[:-1]]
    assert counts == ([0] if route == CHAT else []) + [1, 2, 3, 20, 20]
    for chunk in stream[:-1]:
        assert chunk["usage"]["prompt_tokens"] >= 1
        assert chunk["usage"]["total_tokens"] == chunk["usage"]["prompt_tokens"] + chunk["usage"]["completion_tokens"]
    assert (stream[-2]["choices"], stream[-2]["usage"]["prompt_tokens"]) == ([], 10)


def test_all_answers_of_a_model_have_the_same_fingerprint(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "a")):
        whole = client.post(CHAT, json={"model": "m", "messages": HI}).get_json()
    with worker(store, answer_with(store, "a")):
        stream = chunks(client.post("/v1/completions", json={"model": "m", "prompt": "x", "stream": True}).text)
    assert {chunk["system_fingerprint"] for chunk in stream[:-1]} == {whole["system_fingerprint"]}
    assert whole["system_fingerprint"].startswith("fp_")


def test_a_completion_is_streamed_in_chunks_of_its_text(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "a", "b")):
        stream = chunks(client.post("/v1/completions", json={"prompt": "Once", "stream": True}).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in stream[:-1]) == "ab"
    assert stream[-2]["choices"][0]["finish_reason"] == "length"


def test_text_that_only_the_result_holds_still_reaches_a_stream(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "a", text="abc")):
        stream = chunks(client.post(CHAT, json={"messages": HI, "stream": True}).text)
    assert text_of(stream) == "abc"


def test_a_stream_continues_without_repeated_text_after_a_lost_worker(client: FlaskClient, store: Store) -> None:
    def lose_then_answer(held: ClaimRef) -> None:
        store.append([(held, "Hello ", 1)])
        store.append([(held, "you", 2)])
        store.release("w1", [held])
        heartbeat(store)
        answer_with(store, "Hel", "lo you", " two")(run_next(store))

    with worker(store, lose_then_answer):
        stream = chunks(client.post(CHAT, json={"messages": HI, "stream": True}).text)
    assert text_of(stream) == "Hello you two"


def test_a_stream_continues_without_a_gap_or_a_repeat_if_the_lost_workers_tokens_are_kept(
    client: FlaskClient, store: Store
) -> None:
    with worker(store, lambda held: answer_in_two_attempts(store, held, ["Hello ", "you"], [" two"])):
        stream = chunks(client.post(CHAT, json={"messages": HI, "stream": True}).text)
    assert text_of(stream) == "Hello you two"
    assert stream[-1] == "[DONE]"


def test_a_second_attempt_with_a_different_text_ends_the_stream_with_an_error(
    client: FlaskClient, store: Store
) -> None:
    with worker_that_restarts(store) as watched:
        stream = chunks(watched(client.post(CHAT, json={"messages": HI, "stream": True})).text)
    assert stream[-1]["error"]["code"] == "job_failed"
    assert store.jobs("default").jobs[0].cancel_requested


ENDS: list[tuple[dict[str, Any], int, str]] = [
    ({"outcome": Outcome.EXPIRED, "code": "deadline_exceeded", "stage": "decode"}, 504, "deadline_exceeded"),
    ({"outcome": Outcome.FAILED, "code": "engine_error"}, 500, "job_failed"),
    ({"outcome": Outcome.FAILED, "code": "context_length_exceeded"}, 400, "context_length_exceeded"),
    ({"outcome": Outcome.FAILED, "code": "invalid_value", "message": "no template"}, 400, "invalid_value"),
    ({"outcome": Outcome.CANCELED, "code": "canceled"}, 409, "job_canceled"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("ending", "status", "code"), ENDS)
def test_an_end_without_an_answer_is_an_error_that_must_not_be_retried(
    client: FlaskClient, store: Store, ending: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    with worker(store, answer_with(store, **ending)):
        response = client.post(CHAT, json={"messages": HI, "stream": stream})
    fault(response, status, code)
    assert response.headers["x-should-retry"] == "false"


def test_a_job_that_expires_during_its_stream_ends_it_with_an_error_event(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "Hel", outcome=Outcome.EXPIRED, code="deadline_exceeded", stage="decode")):
        response = client.post(CHAT, json={"messages": HI, "stream": True})
        stream = chunks(response.text)
    assert response.status_code == 200
    assert stream[-1]["error"]["code"] == "deadline_exceeded"
    assert text_of(stream) == "Hel"


def test_a_refusal_has_the_same_body_as_on_other_routes(client: FlaskClient, store: Store) -> None:
    store.client.incrby("penstock:clock", 6_000)
    for stream in (False, True):
        refused(client.post(CHAT, json={"model": "m", "messages": HI, "stream": stream}), "no_worker")


def test_only_live_models_are_listed(client: FlaskClient, store: Store) -> None:
    serve(store, "w2", model="org/other")
    body = client.get("/v1/models").get_json()
    compatible_models.ModelList.model_validate(body)
    assert [model["id"] for model in body["data"]] == ["m", "org/other"]
    assert client.get("/v1/models/org/other").get_json()["id"] == "org/other"
    fault(client.get("/v1/models/nope"), 404, "model_not_found", "model")


def test_an_invalid_or_unsupported_field_is_named(client: FlaskClient) -> None:
    fault(client.post(CHAT, json={"messages": HI, "temperature": 9}), 400, "invalid_value", "temperature")
    fault(client.post(CHAT, json={"messages": HI, "functions": [{}]}), 400, "unsupported_parameter", "functions")
    fault(client.post(CHAT, json={"model": "m"}), 400, "invalid_value", "messages")
    fault(client.post("/v1/completions", json={"prompt": ["a", 5]}), 400, "invalid_value", "prompt")


def test_the_deadline_of_a_plain_call_is_its_clients_timeout(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "a")):
        response = client.post(CHAT, json={"messages": HI}, headers={"x-stainless-timeout": "30"})
    assert response.headers["x-deadline-ms"] == "29000"
    view = store.jobs("default").jobs[0]
    assert (view.deadline_ms, view.deadline_source) == (29_000, "header")


@pytest.mark.parametrize(
    ("route", "body", "other_body"),
    [
        (CHAT, {"messages": HI}, {"messages": [*HI, *HI]}),
        ("/v1/completions", {"prompt": "hi"}, {"prompt": "ho"}),
        ("/v1/responses", {"input": "hi"}, {"input": "ho"}),
        ("/v1/responses", {"input": "hi", "background": True}, {"input": "ho", "background": True}),
        ("/v1/embeddings", {"input": "hi"}, {"input": "ho"}),
    ],
)
def test_a_refused_request_that_a_proxy_repeats_makes_one_appointment(
    store: Store, settings: Settings, route: str, body: dict[str, Any], other_body: dict[str, Any]
) -> None:
    facts = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}
    serve(store, facts=facts | ({"pooling": "mean"} if "embeddings" in route else {}))
    client = a_door(store, settings)
    reconfigure(store, settings, max_inflight=1)
    admitted(store, a_job("filler"))

    def appointment_after_refusal(request_id: str, body: dict[str, Any]) -> float:
        refused(client.post(route, json=body, headers={"x-request-id": request_id}), "inflight_full")
        moment = store.client.zscore(keys.appointments(MODEL), "default")
        assert moment is not None
        return moment

    first = appointment_after_refusal("edge-1", body)
    assert appointment_after_refusal("edge-1", body) == first
    other_request = appointment_after_refusal("edge-2", body)
    assert first < other_request < appointment_after_refusal("edge-2", other_body)


#: The facts of an upstream's worker, and of one whose version asks for one answer only.
NEW, OLD = {"forwards": "true", "forwards_several": "true"}, {"forwards": "true"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": HI, "n": 2}, "n"),
        ("/v1/completions", {"prompt": "hi", "n": 2}, "n"),
        ("/v1/completions", {"prompt": ["hi", "ho"]}, "prompt"),
        ("/v1/completions", {"prompt": [5, 6]}, "prompt"),
        ("/v1/jobs", {"prompt": "hi", "n": 2, "pick": "all"}, "n"),
    ],
)
def test_several_answers_are_left_to_pools_whose_workers_all_can_ask_for_them(
    store: Store, settings: Settings, path: str, body: dict[str, Any], param: str
) -> None:
    serve(store, facts=NEW)
    serve(store, "w2", facts=OLD)
    response = a_door(store, settings).post(path, json=body)
    assert "earlier version" in fault(response, 400, "unsupported_parameter", param)
    assert store.snapshot().waiting == 0
    store.farewell("w2", MODEL)
    with worker(store, answer_with(store, "hello")):
        assert a_door(store, settings).post(path, json=body).status_code in {200, 202}

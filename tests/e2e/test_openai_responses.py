"""The stock `openai` package's `responses` API against the served door: only its base_url is changed."""

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.support.processes import wait_for
from tests.support.served import Address, Served, sim_served


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("responses")) as served:
        yield served


def test_a_response_is_answered_with_the_doors_queue_facts(client: OpenAI) -> None:
    answer = client.responses.create(model="sim", input="hello there", max_output_tokens=5, metadata={"k": "v"})
    assert len(answer.output_text.split()) == 5
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.metadata) == (2, 5, {"k": "v"})
    assert set(answer.model_extra["queue"]) >= {"position", "eta_ms", "waited"}


def test_the_stream_helper_follows_a_response_to_its_end(client: OpenAI) -> None:
    with client.responses.stream(model="sim", input="hello there", max_output_tokens=20) as stream:
        events = list(stream)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len("".join(event.delta for event in deltas).split()) == 20
    assert deltas[-1].snapshot == events[-1].response.output_text
    assert (events[0].type, events[-1].type) == ("response.created", "response.incomplete")


def test_a_background_response_can_be_polled_streamed_and_resumed(client: OpenAI) -> None:
    job = client.responses.create(model="sim", input="hello", max_output_tokens=200, background=True)
    assert job.background
    assert job.status in {"queued", "in_progress"}
    received = []
    with client.responses.retrieve(job.id, stream=True) as stream:
        for event in stream:
            received.append(event)
            if sum(event.type == "response.output_text.delta" for event in received) == 3:
                break
    rest = list(client.responses.retrieve(job.id, stream=True, starting_after=received[-1].sequence_number))
    text = "".join(event.delta for event in [*received, *rest] if event.type == "response.output_text.delta")
    whole = client.responses.retrieve(job.id)
    assert len(text.split()) == 200
    assert (whole.status, whole.output_text) == ("incomplete", text)
    assert rest[-1].response.output_text == text
    with client.responses.stream(response_id=job.id, starting_after=received[-1].sequence_number) as stream:
        assert [event.sequence_number for event in stream][-1] == rest[-1].sequence_number


def test_a_background_response_can_be_canceled(client: OpenAI, served: Address) -> None:
    job = client.responses.create(model="sim", input="hello", max_output_tokens=4_000, background=True)
    assert client.responses.cancel(job.id).status == "cancelled"
    wait_for(lambda: served.stage.inflight() == 0, "the job to end")
    assert client.responses.retrieve(job.id).status == "cancelled"


def test_closing_a_stream_cancels_its_response_unless_it_runs_in_the_background(
    client: OpenAI, served: Address
) -> None:
    for background, inflight in ((True, 1), (False, 0)):
        stream = client.responses.create(
            model="sim", input="hello", max_output_tokens=4_000, background=background, stream=True
        )
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        stream.close()
        # Its job would last for 20 s.
        wait_for(lambda inflight=inflight: served.stage.inflight() == inflight, f"{inflight} inflight", timeout_s=10)
        if background:
            client.responses.cancel(event.item_id.replace("msg_", "resp_"))
            wait_for(lambda: served.stage.inflight() == 0, "the job to end", timeout_s=10)


def test_a_missed_deadline_is_504_in_the_foreground_and_failed_in_the_background(client: OpenAI) -> None:
    request_fields = {
        "model": "sim",
        "input": "hello",
        "max_output_tokens": 4_000,
        "extra_body": {"deadline_ms": 1_500},
    }
    with pytest.raises(openai.InternalServerError) as caught:
        client.responses.create(**request_fields)
    assert caught.value.status_code == 504
    job = client.responses.create(**request_fields, background=True)
    ended = wait_for(
        lambda: found if (found := client.responses.retrieve(job.id)).status == "failed" else None,
        "the job to miss its deadline",
    )
    assert ended.error.type == "deadline_exceeded"
    assert ended.output_text


def test_an_unsupported_or_unknown_request_raises_the_packages_error_class(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="sim", input="hello", previous_response_id="resp_1")
    assert caught.value.body["param"] == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_nope")

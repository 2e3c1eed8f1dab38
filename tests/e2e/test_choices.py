"""Several answers to one prompt, end to end: the stock `openai` package, native jobs, and their events."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.support.processes import wait_for
from tests.support.served import Served, random_model_served

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

pytestmark = pytest.mark.ways("direct", reason="other files test plain and streamed answers both ways")

CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "dibo kufe mala"}], "max_tokens": 12, "seed": 3}
TEXT: Any = {"model": "m", "prompt": "dibo kufe mala resi", "max_tokens": 12, "seed": 3}


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with random_model_served(tmp_path_factory.mktemp("candidates")) as served:
        yield served


@pytest.fixture
def client(common: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{common.url}/v1", api_key="none", max_retries=8) as client:
        yield client


def submit(common: Served, **fields: Any) -> Any:
    """Submit a native job and return its end."""
    body = {"prompt": TEXT["prompt"], "max_tokens": 12, "seed": 3} | fields
    answer = httpx.post(f"{common.url}/v1/jobs?wait_ms=30000", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def singles(client: OpenAI, n: int) -> list[str | None]:
    """Return the answers to single requests with the seeds of the candidates."""
    return [client.chat.completions.create(**CHAT | {"seed": 3 + i}).choices[0].message.content for i in range(n)]


def test_the_choices_of_a_chat_are_the_answers_of_single_requests(client: OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT, n=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.message.content for choice in answer.choices] == singles(client, 4)
    assert answer.usage is not None
    one = client.chat.completions.create(**CHAT).usage
    assert one is not None
    assert answer.usage.prompt_tokens == one.prompt_tokens
    assert answer.usage.completion_tokens <= 48
    assert all(choice.model_extra and choice.model_extra["mean_logprob"] < 0 for choice in answer.choices)


def test_the_choices_of_a_stream_interleave_by_index(client: OpenAI) -> None:
    texts: dict[int, str] = defaultdict(str)
    reasons: dict[int, str] = {}
    counts = []
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    for chunk in client.chat.completions.create(**CHAT, n=3, stream=True, stream_options=options):
        counts.append(chunk.usage.completion_tokens if chunk.usage else 0)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    plain = client.chat.completions.create(**CHAT, n=3)
    assert texts == {choice.index: choice.message.content for choice in plain.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in plain.choices}
    assert counts == sorted(counts)
    assert plain.usage is not None
    assert counts[-1] == plain.usage.completion_tokens


def test_best_of_returns_the_likeliest_answers_with_their_logprobs(client: OpenAI) -> None:
    # The first request computes the whole prompt, and the others its last token, which rounds differently.
    client.completions.create(**TEXT, n=1)
    every = client.completions.create(**TEXT, n=6, logprobs=1)
    best = client.completions.create(**TEXT, n=2, best_of=6, logprobs=1)
    means = sorted((choice.model_extra["mean_logprob"] for choice in every.choices if choice.model_extra), reverse=True)
    assert [choice.model_extra["mean_logprob"] for choice in best.choices if choice.model_extra] == pytest.approx(
        means[:2], abs=1e-5
    )
    assert [choice.index for choice in best.choices] == [0, 1]
    texts = {choice.text: choice.logprobs for choice in every.choices}
    for choice in best.choices:
        same = texts[choice.text]
        assert choice.logprobs is not None
        assert same is not None
        assert choice.logprobs.tokens == same.tokens
        # Which candidates share a step may differ, and with it the last digits.
        assert choice.logprobs.token_logprobs == pytest.approx(same.token_logprobs, abs=1e-4)
        assert "".join(choice.logprobs.tokens or []) == choice.text
    assert best.usage is not None
    assert every.usage is not None
    assert best.usage.completion_tokens == every.usage.completion_tokens


def test_each_choice_fits_the_schema(client: OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["dibo", "kufe", "mala"]}}}
    answer = client.chat.completions.create(**CHAT | {"temperature": 2}, n=5, response_format=form)
    assert len(answer.choices) == 5
    assert {choice.message.content for choice in answer.choices} <= {'"dibo"', '"kufe"', '"mala"'}


@pytest.mark.parametrize(
    "fields", [{"n": 0}, {"n": 17}, {"n": 3, "best_of": 2}, {"n": 1, "best_of": 3, "stream": True}, {"best_of": 17}]
)
def test_numbers_that_do_not_fit_together_are_refused(client: OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**TEXT, **fields)
    assert refused.value.code == "invalid_value"


def test_a_native_job_returns_its_likeliest_answer_or_all(common: Served) -> None:
    every = submit(common, n=4, pick="all")
    assert [each["index"] for each in every["candidates"]] == [0, 1, 2, 3]
    best = max(every["candidates"], key=lambda each: each["mean_logprob"])
    assert every["text"] == best["text"]
    one = submit(common, n=4)
    assert (one["text"], one["finish_reason"]) == (best["text"], best["finish_reason"])
    assert "candidates" not in one
    assert one["usage"]["completion_tokens"] == every["usage"]["completion_tokens"]
    assert submit(common, seed=5)["text"] == every["candidates"][2]["text"]


def test_events_say_to_which_candidate_a_text_belongs_also_after_a_break(common: Served) -> None:
    job = submit(common, n=4, pick="all")
    url = f"{common.url}/v1/jobs/{job['id']}/events"

    def joined(told: list[tuple[str, int, str]]) -> dict[int, str]:
        return {index: "".join(text for _, candidate, text in told if candidate == index) for index in range(4)}

    def texts(last: str | None = None) -> list[tuple[str, int, str]]:
        """Return the id, the candidate and the text of each event after the last one."""
        found = []
        headers = {} if last is None else {"Last-Event-ID": last}
        for event in httpx.get(url, headers=headers, timeout=30).text.split("\n\n"):
            lines = dict(line.split(": ", 1) for line in event.splitlines() if ": " in line)
            if lines.get("event") == "token":
                data = json.loads(lines["data"])
                found.append((lines["id"], data["candidate"], data["text"]))
        return found

    told = texts()
    assert joined(told) == {each["index"]: each["text"] for each in job["candidates"]}
    ids = [event_id for event_id, _, _ in told]
    assert len(set(ids)) == len(ids)
    for seen, last in enumerate(ids, start=1):
        assert texts(last) == told[seen:]


def test_candidates_are_quoted_with_all_their_tokens(common: Served) -> None:
    body = {"prompt": TEXT["prompt"], "max_tokens": 12}
    one = httpx.post(f"{common.url}/v1/quote", json=body).json()
    four = httpx.post(f"{common.url}/v1/quote", json=body | {"n": 4}).json()
    assert (one["max_tokens"], four["max_tokens"]) == (12, 48)
    assert four["cost_mwt"] > one["cost_mwt"]


def test_candidates_cannot_be_combined_with_checks_of_one_answer(common: Served) -> None:
    body = {"prompt": "dibo", "n": 2, "escalate": {"if": ["length"]}}
    answer = httpx.post(f"{common.url}/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "escalate")


PROMPTS = ["dibo kufe mala resi", "kufe kufe tanu", "bopa"]


def test_several_prompts_have_their_choices_in_order(client: OpenAI) -> None:
    answer = client.completions.create(**TEXT | {"prompt": PROMPTS}, n=2)
    singles = [client.completions.create(**TEXT | {"prompt": prompt}, n=2) for prompt in PROMPTS]
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == [each.text for single in singles for each in single.choices]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in singles if each.usage)
    assert answer.usage.completion_tokens == sum(each.usage.completion_tokens for each in singles if each.usage)


def test_a_stream_for_several_prompts_has_the_choices_of_the_whole_answer(client: OpenAI) -> None:
    texts: dict[int, str] = defaultdict(str)
    reasons = {}
    for chunk in client.completions.create(**TEXT | {"prompt": PROMPTS}, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    whole = client.completions.create(**TEXT | {"prompt": PROMPTS}, n=2)
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}


def test_prompts_may_be_token_ids(client: OpenAI) -> None:
    one = client.completions.create(**TEXT | {"prompt": [5, 6, 7, 8]})
    several = client.completions.create(**TEXT | {"prompt": [[5, 6, 7, 8], [9, 10]]})
    assert one.usage is not None
    assert (one.usage.prompt_tokens, several.usage and several.usage.prompt_tokens) == (4, 6)
    assert several.choices[0].text == one.choices[0].text
    mixed: Any = [[5, 6, 7, 8], "dibo"]
    assert client.completions.create(**TEXT | {"prompt": mixed}).choices[0].text == one.choices[0].text
    listed = client.completions.create(**TEXT | {"prompt": [TEXT["prompt"]]})
    assert listed.choices[0].text == client.completions.create(**TEXT).choices[0].text


def test_a_stream_for_several_prompts_that_is_closed_cancels_all_its_answers(client: OpenAI, common: Served) -> None:
    long = {"prompt": PROMPTS, "max_tokens": 300, "extra_body": {"ignore_eos": True}}
    stream = client.completions.create(**TEXT | long, stream=True)
    next(iter(stream))
    assert common.stage.inflight() == 1
    stream.close()
    wait_for(lambda: common.stage.inflight() == 0, "the job to end", timeout_s=10)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": []},
        {"prompt": [""]},
        {"prompt": ["a", 5]},
        {"prompt": [[]]},
        {"prompt": [[-1]]},
        {"prompt": [[True]]},
        {"prompt": ["a"] * 17},
        {"prompt": ["a"] * 9, "n": 2},
        {"prompt": ["a", "b"], "n": 1, "best_of": 2},
        {"prompt": [["a"]]},
        {"prompt": "a\0"},
        {"prompt": [1 << 30]},
        {"prompt": ["dibo " * 3000] * 4},
    ],
)
def test_prompts_that_cannot_be_answered_are_refused_and_leave_nothing(
    client: OpenAI, common: Served, fields: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**TEXT | fields)
    assert refused.value.code in {"invalid_value", "context_length_exceeded"}
    assert common.stage.inflight() == 0


def test_an_estimate_of_several_prompts_counts_them_all(common: Served) -> None:
    """All are one job, so all are admitted or none is."""
    body = {"model": "m", "prompt": ["dibo kufe"] * 8, "max_tokens": 12, "n": 2}
    answer = httpx.post(f"{common.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200
    job = httpx.get(f"{common.url}/v1/jobs/{answer.json()['id'].removeprefix('cmpl-')}").json()
    assert job["usage"]["completion_tokens"] == answer.json()["usage"]["completion_tokens"] <= 16 * 12

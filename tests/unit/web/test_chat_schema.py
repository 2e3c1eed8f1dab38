"""Tests which fields of OpenAI's request bodies are accepted, ignored or refused with status 400."""

from typing import Any

import pytest
from pydantic import ValidationError

from web.http.api_errors import ApiError
from web.openai.chat_schema import ChatWithTools, CompletionBody

HI = [{"role": "user", "content": "hi"}]


def chat(**body: Any) -> ChatWithTools:
    return ChatWithTools.model_validate({"messages": HI} | body)


def error_of(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**body)
    assert (caught.value.code, caught.value.status) == ("unsupported_parameter", 400)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{}]),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {}),
        ("colour", "red"),
    ],
)
def test_an_unsupported_field_that_would_change_the_answer_is_refused_by_name(field: str, value: Any) -> None:
    assert error_of(**{field: value}).param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1),
        ("tools", []),
        ("tool_choice", "none"),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("modalities", ["text"]),
        ("user", "me"),
        ("store", True),
        ("metadata", {"a": "b"}),
        ("service_tier", "auto"),
        ("parallel_tool_calls", True),
        ("seed", None),
        ("tools", None),
        ("colour", None),
        ("stream_options", {"include_usage": None}),
        ("safety_identifier", "x"),
        ("prompt_cache_key", "k"),
    ],
)
def test_a_field_that_does_not_affect_the_answer_is_accepted_and_ignored(field: str, value: Any) -> None:
    payloads = [chat(**more).payload() for more in ({field: value}, {})]
    for payload in payloads:
        # A missing seed is drawn at random.
        payload.pop("seed")
    assert payloads[0] == payloads[1]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"n": 1, "tools": [], "echo": False, "seed": None}, ()),
        ({"verbosity": "medium"}, ("verbosity",)),
        ({"verbosity": "low", "user": "me", "store": True}, ("verbosity", "user", "store")),
        ({"copilot_cache_control": {"type": "ephemeral"}}, ("copilot_cache_control",)),
        ({"messages": [HI[0] | {"copilot_cache_control": {"type": "ephemeral"}}]}, ("messages.copilot_cache_control",)),
        ({"messages": [HI[0] | {"cache_control": {}}, HI[0] | {"cache_control": {}}]}, ("messages.cache_control",)),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, ("stream_options.include_obfuscation",)),
        ({"client_metadata": {"a": "b"}}, ("client_metadata",)),
    ],
)
def test_fields_without_effect_are_named(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    assert chat(**fields).ignored == names


def test_what_one_body_ignores_is_not_named_with_the_next() -> None:
    with pytest.raises(ApiError):
        chat(user="me", colour="red")
    assert chat().ignored == ()


def test_the_seed_may_have_its_name_in_mistrals_api() -> None:
    assert chat(random_seed=7).payload() == chat(seed=7).payload()


def test_two_names_of_one_field_are_refused() -> None:
    assert error_of(random_seed=7, seed=7).param == "random_seed"


def test_a_message_that_does_not_ask_to_be_continued_is_accepted() -> None:
    said = {"role": "assistant", "content": "Hello"}
    assert chat(messages=[*HI, said | {"prefix": False}]).messages == chat(messages=[*HI, said]).messages
    assert error_of(messages=[*HI, said | {"prefix": True}]).param == "messages[1].prefix"


@pytest.mark.parametrize("level", ["loud", "", 3, ["low"], {"level": "low"}])
def test_an_invalid_verbosity_is_refused(level: Any) -> None:
    assert error_of(verbosity=level).param == "verbosity"


def test_an_answer_of_another_server_may_come_back_with_its_reasoning() -> None:
    said = {"role": "assistant", "content": "x", "reasoning_details": [{}], "reasoning_opaque": "e", "refusal": None}
    assert chat(messages=[*HI, said, *HI]).payload()["messages"][1] == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "function", "content": "x"}, "messages[1].role"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[1].function_call"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": ["text"], "text": "a"}]}, "messages[1].content[0]"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]},
            "messages[1].content[1]",
        ),
    ],
)
def test_images_audio_and_old_calls_in_a_message_are_refused_with_the_path_of_the_field(
    message: dict[str, Any], param: str
) -> None:
    assert error_of(messages=[*HI, message]).param == param


def test_text_parts_are_joined_and_the_developer_role_becomes_the_system_role() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(
        messages=[{"role": "developer", "content": "be kind"}, {"role": "user", "content": parts, "name": "joe"}]
    )
    assert body.payload()["messages"] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "ab"}]


REFUSAL = {"type": "refusal", "refusal": "I can't."}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"content": [REFUSAL]}, "I can't."),
        ({"content": [{"type": "text", "text": "Well, "}, REFUSAL]}, "Well, I can't."),
        ({"content": None, "refusal": "I can't."}, "I can't."),
        ({"content": "Well.", "refusal": "I can't."}, "Well."),
        ({"content": "", "refusal": None}, ""),
    ],
)
def test_a_refusal_of_the_assistant_is_what_it_said(said: dict[str, Any], text: str) -> None:
    body = chat(messages=[*HI, {"role": "assistant"} | said, *HI])
    assert body.payload()["messages"][1] == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "part", [{"type": "refusal"}, {"type": "refusal", "refusal": 5}, {"type": "refusal", "text": "x"}]
)
def test_a_refusal_without_a_text_is_refused_by_its_path(part: dict[str, Any]) -> None:
    assert error_of(messages=[*HI, {"role": "assistant", "content": [part]}]).param == "messages[1].content[0]"


def test_only_the_assistant_can_refuse() -> None:
    assert error_of(messages=[{"role": "user", "content": [REFUSAL]}]).param == "messages[0].content[0]"


def test_an_unknown_role_or_an_empty_chat_is_refused() -> None:
    malformed = [{"role": "parrot", "content": "x"}, {"role": ["user"], "content": "x"}, {"role": "user"}, "hi"]
    for messages in ([], *([item] for item in malformed), "hi"):
        with pytest.raises(ValidationError):
            chat(messages=messages)


def test_max_completion_tokens_means_max_tokens_and_takes_precedence_over_it() -> None:
    assert chat(max_completion_tokens=7).requested_max_tokens == 7
    assert chat(max_tokens=8).requested_max_tokens == 8
    assert chat(max_tokens=8, max_completion_tokens=7).requested_max_tokens == 7


def test_defaults_are_those_of_openai_and_penstock_s_own_fields_are_accepted() -> None:
    payload = chat().payload()
    assert (payload["temperature"], payload["top_p"]) == (1.0, 1.0)
    assert chat(top_k=3, min_p=0.5, repeat_penalty=1.1).payload()["top_k"] == 3
    assert chat(deadline_ms=9).deadline_ms == 9


def test_more_answers_than_a_job_has_are_refused_with_their_number() -> None:
    message = "n=9 for each of 2 prompts makes 18 answers; at most 16 are allowed"
    with pytest.raises(ValidationError, match=message):
        CompletionBody.model_validate({"prompt": ["a", "b"], "n": 9})


def test_a_completion_accepts_texts_and_token_ids_as_prompts() -> None:
    for given in ("hey", ["hey"]):
        assert CompletionBody.model_validate({"prompt": given}).payload()["prompt"] == "hey"
    for given, prompts in (([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]]), (["a", [2]], ["a", [2]])):
        payload = CompletionBody.model_validate({"prompt": given}).payload()
        assert payload["prompts"] == prompts
        assert payload.get("n", 1) == len(prompts)
    body = CompletionBody.model_validate({"prompt": ["a", "b"], "n": 3})
    assert (body.payload()["n"], body.candidates, body.choices) == (6, 6, 6)
    for prompt in ("", 3, None, [], [""], ["a", 5], [[]], [[-1]], [["a"]], ["a"] * 17):
        with pytest.raises(ValidationError, match="prompt"):
            CompletionBody.model_validate({"prompt": prompt})


def test_echo_and_suffix_of_a_completion_are_refused() -> None:
    for field, value in (("echo", True), ("suffix", "end")):
        with pytest.raises(ApiError) as caught:
            CompletionBody.model_validate({"prompt": "hey", field: value})
        assert caught.value.param == field

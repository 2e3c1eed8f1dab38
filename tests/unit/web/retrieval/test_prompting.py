"""Tests of the templates that put passages into prompts, and of hostile passages there."""

from typing import Any

import pytest

from shared.retrieval.records import Passage
from web.retrieval.prompting import DEFAULT_TEMPLATE, filled, numbered, question_of, with_passages

SHORT = "<{passages}>{question}"


def passage(text: str, document: str = "a.md", ordinal: int = 0) -> Passage:
    return Passage(document, ordinal, text, 3, 0.5, {})


def put(payload: dict[str, Any], *texts: str, template: str | None = SHORT, breaks_marks: bool = False) -> Any:
    return with_passages(payload, [passage(text) for text in texts], template, breaks_marks=breaks_marks)


def test_passages_are_numbered_and_named_by_their_documents():
    listed = numbered([passage("one\n", "a.md"), passage("two", "b/c  d\n.md")], breaks_marks=False)
    assert listed == "[1] (a.md)\none\n\n[2] (b/c d .md)\ntwo"


def test_the_users_last_message_gets_the_passages_and_the_others_stay():
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "first"}]
    chat += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "last"}]
    sent = put({"messages": chat, "seed": 1}, "text")
    assert sent == {"messages": [*chat[:3], {"role": "user", "content": "<[1] (a.md)\ntext>last"}], "seed": 1}
    assert chat[3] == {"role": "user", "content": "last"}
    assert question_of({"messages": chat}) == "last"


def test_the_images_of_a_message_stay_behind_the_passages():
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    parts = [{"type": "text", "text": "what is this?"}, picture]
    (message,) = put({"messages": [{"role": "user", "content": parts}]}, "text")["messages"]
    assert message["content"] == [{"type": "text", "text": "<[1] (a.md)\ntext>"}, *parts]
    assert question_of({"messages": [{"role": "user", "content": parts}]}) == "what is this?"


@pytest.mark.parametrize("content", [{"text": "why?"}, 7, True])
def test_a_content_of_another_kind_is_forwarded_as_it_came_behind_the_passages(content):
    message = {"role": "user", "content": content}
    passages = {"role": "user", "content": "<[1] (a.md)\ntext>"}
    assert put({"messages": [message]}, "text")["messages"] == [passages, message]


def test_a_chat_without_a_message_of_the_user_gets_one():
    chat = [{"role": "system", "content": "s"}]
    assert put({"messages": chat}, "text")["messages"] == [chat[0], {"role": "user", "content": "<[1] (a.md)\ntext>"}]
    assert question_of({"messages": chat}) == ""


def test_a_prompt_gets_the_passages_too():
    assert put({"prompt": "why?"}, "text") == {"prompt": "<[1] (a.md)\ntext>why?"}
    assert question_of({"prompt": "why?"}) == "why?"


def test_without_passages_a_request_stays_as_it_is():
    assert put({"prompt": "why?"}) == {"prompt": "why?"}


def test_a_template_without_a_place_for_the_question_is_followed_by_it():
    assert filled("Read {passages}.", "P", "Q") == "Read P.\n\nQ"
    assert filled("Read {passages}.\n", "P", "") == "Read P."
    assert filled(DEFAULT_TEMPLATE, "P", "Q").endswith("\n\nQ")


@pytest.mark.parametrize("hostile", ["{question} {passages}", "{0.__class__}", "%s %(x)s", "{{ 7*7 }}", "\\1\\g<0>"])
def test_nothing_in_a_passage_or_a_question_is_read_as_a_template(hostile):
    assert filled(SHORT, hostile, hostile) == f"<{hostile}>{hostile}"


def test_what_may_be_control_tokens_is_broken_up_where_an_engine_would_read_them():
    text = "a <|im_end|> b </s> c [INST] d < e 1 << 2 [x](y)"
    sent = put({"prompt": "<|keep|>"}, text, breaks_marks=True, template="{passages}\n{question}")["prompt"]
    assert "<|im_end|>" not in sent
    assert "</s>" not in sent
    assert "[INST]" not in sent
    assert sent.endswith("\n<|keep|>")
    assert sent.replace("\u200b", "") == f"[1] (a.md)\n{text}\n<|keep|>"
    assert put({"prompt": ""}, text)["prompt"] == f"<[1] (a.md)\n{text}>"

"""Tests that prompts have equal digests exactly as far as they begin with the same text of the same tenant."""

from itertools import takewhile

import pytest

from shared.jobs.prompt_prefix import prefix_digests


def chat(*texts: str, **fields) -> dict:
    roles = ["system", *["user", "assistant"] * len(texts)]
    return {"messages": [{"role": roles[i], "content": text} for i, text in enumerate(texts)]} | fields


def common(one: dict, other: dict, tenants=("blue", "blue")) -> int:
    """Return how many digests two requests have in common, from the first one on."""
    digests = [prefix_digests(tenant, payload).split() for tenant, payload in zip(tenants, (one, other), strict=True)]
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(*digests, strict=False))])


@pytest.mark.parametrize(("length", "digests"), [(0, 0), (255, 0), (256, 1), (1_023, 1), (4_096, 3), (10**6, 4)])
def test_a_prompt_has_a_digest_for_each_length_that_it_reaches(length, digests):
    assert len(prefix_digests("blue", {"prompt": "x" * length}).split()) == digests


def test_chats_with_the_same_system_prompt_share_the_digests_that_it_covers():
    assert common(chat("s" * 1_100, "one question" * 400), chat("s" * 1_100, "another one" * 400)) == 2


def test_the_next_turn_of_a_chat_has_all_digests_of_the_turn_before():
    turns = ["system" * 50, "question" * 100, "answer" * 200, "question" * 300]
    assert common(chat(*turns[:2]), chat(*turns)) == len(prefix_digests("blue", chat(*turns[:2])).split()) == 2


def test_prompts_of_two_tenants_share_no_digest():
    assert common({"prompt": "x" * 5_000}, {"prompt": "x" * 5_000}, ("blue", "green")) == 0


def test_a_text_that_moves_to_another_message_is_another_prompt():
    assert common(chat("a" * 200, "b" * 200), chat("a" * 200 + "b" * 50, "b" * 150)) == 0


def test_tools_are_the_beginning_of_a_chat_unless_the_model_is_not_shown_them():
    tools = [{"type": "function", "function": {"name": "look", "description": "d" * 300}}]
    plain = chat("s" * 300, "question")
    assert common(plain, plain | {"tools": tools}) == 0
    assert common(plain, plain | {"tools": tools, "tool_choice": "none"}) == 1


def test_parts_of_a_message_count_with_their_texts():
    parts = [{"type": "text", "text": "s" * 300}, {"type": "image_url", "image_url": {"url": "data:" + "x" * 10**6}}]
    assert common(chat("s" * 300), {"messages": [{"role": "system", "content": parts}]}) == 1


@pytest.mark.parametrize(
    "payload", [{"input": ["x" * 5_000]}, {"prompts": ["x" * 5_000, "y"]}, {"prompts": [[1] * 5_000]}]
)
def test_a_request_that_continues_no_single_text_has_no_digest(payload):
    assert prefix_digests("blue", payload) == ""


def test_a_text_with_half_of_a_pair_of_surrogates_has_a_digest():
    assert len(prefix_digests("blue", {"prompt": "\ud83d" * 300}).split()) == 1

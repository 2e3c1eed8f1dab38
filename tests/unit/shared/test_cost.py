"""Tests how the door estimates the number of prompt tokens."""

from hypothesis import given
from hypothesis import strategies as some

from shared.jobs import cost
from shared.jobs.request_texts import MAX_BYTES_PER_TOKEN, attachments


def test_a_prompt_for_the_sim_engine_has_one_token_per_word_and_at_least_one() -> None:
    assert cost.estimate({"prompt": "tell me  a\nstory"}, words=True) == 4
    assert cost.estimate({"prompt": " "}, words=True) == 1
    assert cost.lower_bound({"prompt": "tell me a story"}, words=True) == 4


def test_a_text_is_estimated_by_its_number_of_utf_8_bytes() -> None:
    assert cost.estimate({"prompt": "a" * 1000}) == 300
    assert cost.estimate({"prompt": "ž" * 1000}) == 600
    assert cost.estimate({"prompt": "a" * 1000}, tokens_per_byte=0.5) == 500


def test_each_message_of_a_chat_adds_a_fixed_number_of_tokens() -> None:
    chat = {"messages": [{"role": "user", "content": "a" * 100}, {"role": "assistant", "content": "b" * 100}]}
    assert cost.estimate(chat) == 60 + 2 * cost.TOKENS_PER_MESSAGE


@given(some.text(max_size=2_000), some.booleans())
def test_the_lower_bound_never_exceeds_the_estimate_of_any_text(text: str, words: bool) -> None:
    payload = {"prompt": text}
    assert 1 <= cost.lower_bound(payload, words=words) <= cost.estimate(payload, words=words)


def test_of_a_forwarded_message_the_text_counts_by_bytes_and_an_attachment_by_itself() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 90_000}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "a" * 1_000}, picture, picture]}]
    payload = {"messages": messages, "forward": {}}
    assert attachments(payload) == 2
    assert cost.estimate(payload) == 300 + cost.TOKENS_PER_MESSAGE + 2 * cost.TOKENS_PER_ATTACHMENT
    assert cost.estimate(payload, tokens_per_byte=0.1, tokens_per_attachment=250) == 100 + 4 + 500
    assert cost.lower_bound(payload) < 10


def test_a_query_counts_with_each_document_that_it_is_compared_with() -> None:
    payload = {"query": "q" * 1_000, "input": ["a" * 1_000, "b" * 3_000]}
    assert cost.estimate(payload) == round(0.3 * (2 * 1_000 + 4_000))
    assert cost.lower_bound(payload) == cost.lower_bound({"prompt": "q" * 1_000}) + cost.lower_bound(
        {"prompt": "b" * 3_000}
    )


def test_several_prompts_count_together_and_token_ids_by_their_number() -> None:
    payload = {"prompts": ["a" * 1000, [5, 6, 7], "b" * 1000]}
    assert cost.estimate(payload) == 603
    assert cost.lower_bound(payload) == -(-2000 // MAX_BYTES_PER_TOKEN) + 3
    assert cost.estimate({"prompts": ["one two", [5, 6, 7]]}, words=True) == 5


def test_reasoning_counts_if_no_message_of_the_user_follows_and_is_no_part_of_the_lower_bound() -> None:
    thought = {"role": "assistant", "content": "", "reasoning_content": "x" * 10_000}
    user = {"role": "user", "content": "hi"}
    shown, past = {"messages": [user, thought]}, {"messages": [user, thought, user]}
    assert cost.estimate(shown) > 3_000
    assert cost.estimate(past) < 30
    assert cost.lower_bound(shown) == 1
    assert cost.estimate(shown, words=True) == 1


def test_tools_and_calls_of_tools_are_part_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "x" * 1_000}}]
    calls = [{"id": "1", "function": {"name": "y" * 1_000, "arguments": "{}"}}]
    asked = {"messages": [{"role": "assistant", "content": None, "tool_calls": calls}], "forward": {"tools": tools}}
    assert cost.estimate(asked) > 600

"""Prompt tokens as the door estimates them."""

from hypothesis import given
from hypothesis import strategies as some

from shared.jobs import cost


def test_the_sim_engine_counts_words_and_at_least_one() -> None:
    assert cost.estimate({"prompt": "tell me  a\nstory"}, words=True) == 4
    assert cost.estimate({"prompt": " "}, words=True) == 1
    assert cost.least({"prompt": "tell me a story"}, words=True) == 4


def test_a_text_is_estimated_by_its_bytes_in_utf_8() -> None:
    assert cost.estimate({"prompt": "a" * 1000}) == 300
    assert cost.estimate({"prompt": "ž" * 1000}) == 600
    assert cost.estimate({"prompt": "a" * 1000}, tokens_per_byte=0.5) == 500


def test_each_message_of_a_chat_carries_its_marks() -> None:
    chat = {"messages": [{"role": "user", "content": "a" * 100}, {"role": "assistant", "content": "b" * 100}]}
    assert cost.estimate(chat) == 60 + 2 * cost.TOKENS_PER_MESSAGE


@given(some.text(max_size=2_000), some.booleans())
def test_the_least_count_never_exceeds_the_estimate_of_any_text(text: str, words: bool) -> None:
    payload = {"prompt": text}
    assert 1 <= cost.least(payload, words=words) <= cost.estimate(payload, words=words)

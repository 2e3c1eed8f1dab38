"""Tests of the committed demo model: with greedy sampling in llama.cpp it writes short, readable stories."""

import re
from collections import Counter
from random import Random

import llama_cpp
import pytest

from tools.demo_model.stories import a_story
from workers.demo import DEMO_MODEL_NAME, demo_model_path
from workers.demo.vocabulary import TOOL_CHAT_TEMPLATE

#: Largest size of the model file in the package.
MAX_BYTES = 8_000_000


@pytest.fixture(scope="module")
def llama() -> llama_cpp.Llama:
    return llama_cpp.Llama(str(demo_model_path()), n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False)


@pytest.fixture(scope="module")
def story_words() -> set[str]:
    rng = Random(1)
    return {word for _ in range(3000) for word in words_of(a_story(rng))}


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text)


def continue_text(llama: llama_cpp.Llama, prompt: str, max_tokens: int) -> tuple[str, str]:
    """Return the greedy continuation of the prompt and its finish reason."""
    choice = llama.create_completion(prompt, max_tokens=max_tokens, temperature=0)["choices"][0]
    return choice["text"], choice["finish_reason"]


def test_the_model_file_is_small_and_its_metadata_describe_it(llama: llama_cpp.Llama) -> None:
    assert demo_model_path().stat().st_size <= MAX_BYTES
    assert llama.metadata["general.name"] == DEMO_MODEL_NAME
    assert llama.metadata["llama.context_length"] == "2048"
    assert llama.metadata["tokenizer.chat_template"] == TOOL_CHAT_TEMPLATE


@pytest.mark.parametrize(
    "prompt",
    [
        "Once upon a time",
        "Once upon a time, there was a little fox named Fern.",
        "Long ago",
        "One day, a",
        "A girl named Mia",
    ],
)
def test_the_beginning_of_a_story_is_continued_to_its_end_in_words_of_the_training_stories(
    llama: llama_cpp.Llama, story_words: set[str], prompt: str
) -> None:
    story, reason = continue_text(llama, prompt, max_tokens=256)

    assert reason == "stop"
    assert story.isprintable()
    assert story[-1] in '.!"'
    words = words_of(prompt + story)
    assert len(words) > 50
    assert set(words) - story_words == set()


@pytest.mark.parametrize("max_tokens", [64, 256])
def test_no_four_words_occur_more_than_twice_in_the_story_after_once_upon_a_time(
    llama: llama_cpp.Llama, max_tokens: int
) -> None:
    story, _ = continue_text(llama, "Once upon a time", max_tokens)
    words = words_of(story)
    four_word_counts = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))

    assert max(four_word_counts.values()) <= 2


def test_the_hero_of_a_story_keeps_its_name_to_the_end(llama: llama_cpp.Llama) -> None:
    story, _ = continue_text(llama, "Once upon a time, there was a little fox named Fern.", max_tokens=256)

    assert story.count("Fern") >= 4


def test_the_question_who_are_you_is_answered_with_the_models_name(llama: llama_cpp.Llama) -> None:
    answer = llama.create_chat_completion([{"role": "user", "content": "Who are you?"}], max_tokens=64, temperature=0)

    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"]["content"].startswith("I am penstock-demo")


def test_a_request_for_a_story_is_answered_with_a_whole_story(llama: llama_cpp.Llama, story_words: set[str]) -> None:
    request = {"role": "user", "content": "Tell me a story"}
    choice = llama.create_chat_completion([request], max_tokens=256, temperature=0)["choices"][0]

    assert choice["finish_reason"] == "stop"
    words = words_of(choice["message"]["content"])
    assert len(words) > 50
    assert set(words) - story_words == set()


def test_the_model_still_writes_a_story_after_a_thousand_tokens_of_chat(
    llama: llama_cpp.Llama, story_words: set[str]
) -> None:
    rng = Random(2)
    chat = []
    for _ in range(8):
        chat += [{"role": "user", "content": "Another one, please"}, {"role": "assistant", "content": a_story(rng)}]
    answer = llama.create_chat_completion(
        [*chat, {"role": "user", "content": "Tell me a story"}], max_tokens=256, temperature=0
    )

    assert answer["usage"]["prompt_tokens"] > 1000
    assert answer["choices"][0]["finish_reason"] == "stop"
    words = words_of(answer["choices"][0]["message"]["content"])
    assert len(words) > 50
    assert set(words) - story_words == set()

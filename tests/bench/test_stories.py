"""Tests that the stories for the demo model depend only on the seed, are all different and fit their hero."""

import re
from collections import Counter
from itertools import islice
from random import Random

import pytest

from tools.demo_model import story_cast as cast
from tools.demo_model.chats import question, story_wish
from tools.demo_model.documents import documents
from tools.demo_model.stories import Hero, a_hero, a_story, sentences_of
from tools.demo_model.story_plot import Plot
from tools.demo_model.story_plots_more import PLOTS
from workers.demo.vocabulary import ASSISTANT_ID, BOS_ID, EOS_ID, USER_ID


def stories(seed: int, count: int) -> list[str]:
    rng = Random(seed)
    return [a_story(rng) for _ in range(count)]


def test_the_same_seed_gives_the_same_stories_and_another_seed_gives_others() -> None:
    assert stories(1, 20) == stories(1, 20)
    assert not set(stories(1, 20)) & set(stories(2, 20))


def test_a_thousand_stories_are_all_different() -> None:
    made = stories(3, 1000)

    assert len(set(made)) == 1000
    assert len({story.split(".")[0] for story in made}) > 500
    assert len({sentences_of(story)[-1] for story in made}) > 50


def test_nearly_half_the_stories_begin_once_upon_a_time() -> None:
    share = sum(story.startswith("Once upon a time") for story in stories(4, 1000)) / 1000

    # The share of its family, and 4 of the 15 openings of all others: 0.45 + 0.55 * 4 / 15.
    assert 0.55 < share < 0.65


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_gives_whole_sentences_without_unfilled_slots(plot: Plot) -> None:
    rng = Random(5)
    for _ in range(200):
        story = a_story(rng, plot=plot)
        assert not re.search(r"[{}|]|  | [.,!?]|\.\.", story), story
        assert story[-1] in '.!"'
        assert story.count('"') % 2 == 0, story
        assert all(sentence[0].isupper() or sentence[0] == '"' for sentence in sentences_of(story)), story
        assert 60 <= len(story.split()) <= 200


def test_a_story_uses_the_pronouns_of_its_hero() -> None:
    rng = Random(6)
    for name, kind, wrong in (("Mia", "girl", "he him his"), ("Tom", "boy", "she her")):
        made = [a_story(rng, a_hero(rng, kind=kind, name=name)) for _ in range(300)]
        for story in made:
            helper_is_female = any(row[1] in story and row[2] == "she" for row in cast.HELPERS)
            if helper_is_female == (kind == "girl"):
                assert not set(wrong.split()) & set(re.findall(r"\w+", story.lower())), story
            assert name in story


def test_a_hero_never_meets_a_helper_of_the_same_kind_or_name() -> None:
    rng = Random(7)
    for _ in range(300):
        story = a_story(rng, Hero("Silver", "fox", "", "she"))
        assert "Vivian" not in story
        assert "white horse" not in story


def test_a_wish_is_answered_with_a_story_about_it() -> None:
    rng, wishes_with = Random(8), Counter[str]()
    for _ in range(300):
        wish, story = story_wish(rng)
        for what, pattern in (("name", r"(?:named|called) (\w+)"), ("kind", r"about an? (\w+) named")):
            if wished := re.search(pattern, wish):
                wishes_with[what] += 1
                assert wished[1] in story
    assert min(wishes_with["name"], wishes_with["kind"]) > 10


def test_the_answers_to_small_sums_are_correct() -> None:
    rng = Random(9)
    sums = [answer for wish, answer in (question(rng) for _ in range(500)) if "+" in wish]

    assert len(sums) > 50
    for answer in sums:
        first, second, total = map(int, re.fullmatch(r"(\d+) \+ (\d+) is (\d+)\.", answer).groups())
        assert first + second == total


def test_a_document_begins_with_bos_and_ends_with_an_eos_that_is_learned() -> None:
    for document in islice(documents(10), 300):
        assert (document[0].content, document[0].learned) == (BOS_ID, False)
        assert (document[-1].content, document[-1].learned) == (EOS_ID, True)


def test_only_the_answers_in_a_chat_are_learned_and_not_what_the_user_writes() -> None:
    made = islice(documents(11, exercises_share=0), 300)
    chats = [document for document in made if USER_ID in [part.content for part in document]]

    assert len(chats) > 50
    for chat in chats:
        speaker = None
        for part in chat[1:]:
            if isinstance(part.content, int) and part.content != EOS_ID:
                speaker = part.content
                assert not part.learned
            else:
                assert part.learned == (speaker == ASSISTANT_ID)

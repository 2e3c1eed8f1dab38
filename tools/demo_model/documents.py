"""Generates the demo model's training documents: stories and chats as parts, some learned and some only context."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tools.demo_model.chats import a_chat, question, riddle_text, small_talk, story_wish
from tools.demo_model.stories import a_story, sentences_of
from workers.demo.vocabulary import ASSISTANT_ID, BOS_ID, EOS_ID, SYSTEM_ID, USER_ID

_ROLE_IDS = {"system": SYSTEM_ID, "user": USER_ID, "assistant": ASSISTANT_ID}


@dataclass(frozen=True)
class Part:
    """A text or one control token. `learned` is true if the model is trained to generate this part.

    Each text is tokenized by itself, because llama.cpp tokenizes the text between two control tokens by itself, and a
    prompt separately from its continuation.
    """

    content: str | int
    learned: bool


def documents(seed: int) -> Iterator[list[Part]]:
    """Yield an endless sequence of documents that depends only on the seed. Each begins with BOS and ends with EOS."""
    rng = Random(seed)  # noqa: S311 - stories are not secret
    makers = (_whole_story, _story_from_the_middle, _asked_in_plain_text, _chat)
    while True:
        yield [Part(BOS_ID, learned=False), *rng.choices(makers, weights=(45, 8, 12, 35))[0](rng)]


def _whole_story(rng: Random) -> list[Part]:
    story = a_story(rng)
    if rng.random() < 0.1:
        story = story[0].lower() + story[1:]
    return _cut(rng, story, 0.2)


def _story_from_the_middle(rng: Random) -> list[Part]:
    """Return a story that begins at one of its later sentences, since a prompt may be any sentence."""
    sentences = sentences_of(a_story(rng))
    return _cut(rng, " ".join(sentences[rng.randint(1, 4) :]), 0.3)


def _asked_in_plain_text(rng: Random) -> list[Part]:
    """Return a request and its answer without a chat's control tokens, as in a prompt for completion."""
    asked, answered = rng.choices((story_wish, small_talk, question, riddle_text), weights=(60, 15, 10, 15))[0](rng)
    gap = rng.choice((" ", " ", "\n", "\n\n")) if asked[-1] in ".!?" else "\n\n"
    return [Part(asked, learned=False), Part(gap + answered, learned=True), Part(EOS_ID, learned=True)]


def _chat(rng: Random) -> list[Part]:
    parts: list[Part] = []
    for role, text in a_chat(rng):
        learned = role == "assistant"
        parts += [Part(_ROLE_IDS[role], learned=False), Part(text, learned), Part(EOS_ID, learned)]
    return parts


def _cut(rng: Random, story: str, share: float) -> list[Part]:
    """Return a story and EOS. A `share` of the stories is split at a random letter: a prompt may end within a word."""
    at = rng.randrange(1, len(story)) if rng.random() < share else 0
    texts = [text for text in (story[:at], story[at:]) if text]
    return [*(Part(text, learned=True) for text in texts), Part(EOS_ID, learned=True)]

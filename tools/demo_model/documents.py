"""Generates the demo model's training documents: stories, chats, calls of tools and exercises, in parts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tools.demo_model.calls.conversations import a_conversation
from tools.demo_model.calls.exercises import an_exercise, random_tokens
from tools.demo_model.chats import a_chat, question, riddle_text, small_talk, story_wish
from tools.demo_model.stories import a_story, sentences_of
from workers.demo.vocabulary import (
    ASSISTANT_ID,
    BOS_ID,
    EOS_ID,
    FIRST_PIECE_ID,
    SPECIALS,
    SYSTEM_ID,
    TOOL_CHAT_TEMPLATE,
    USER_ID,
)
from workers.engine.chat.chat_template import ChatTemplate

_ROLE_IDS = {"system": SYSTEM_ID, "user": USER_ID, "assistant": ASSISTANT_ID}
_TEMPLATE = ChatTemplate(TOOL_CHAT_TEMPLATE, bos=SPECIALS[BOS_ID], eos=SPECIALS[EOS_ID])
_CONTROL_NAMES = re.compile(f"({'|'.join(map(re.escape, SPECIALS))})")


@dataclass(frozen=True)
class Part:
    """A text or one control token. `learned` is true if the model is trained to generate this part.

    Each text is tokenized by itself, because llama.cpp tokenizes the text between two control tokens by itself, and a
    prompt separately from its continuation.
    """

    content: str | int
    learned: bool


#: Number of tokens of the vocabulary.
N_VOCAB = 2048
#: The share of the exercises whose tokens are random.
_RANDOM_TOKENS_SHARE = 0.5
#: The share of the documents in which the assistant has tools.
TOOLS_SHARE = 0.68
#: The share of the documents that are exercises in copying.
EXERCISES_SHARE = 0.08


def documents(
    seed: int, tools_share: float = TOOLS_SHARE, exercises_share: float = EXERCISES_SHARE
) -> Iterator[list[Part]]:
    """Yield an endless sequence of documents, each from BOS to EOS, that depends only on the arguments."""
    rng = Random(seed)  # noqa: S311 - stories are not secret
    without_tools = (_whole_story, _story_from_the_middle, _asked_in_plain_text, _chat)
    while True:
        kind = rng.random()
        maker = rng.choices(without_tools, weights=(45, 8, 12, 35))[0]
        if kind < tools_share:
            maker = _conversation_with_tools
        elif kind < tools_share + exercises_share:
            maker = _exercise
        yield [Part(BOS_ID, learned=False), *maker(rng)]


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


def _conversation_with_tools(rng: Random) -> list[Part]:
    """Return a conversation as the worker renders it for the model. The model learns the assistant's texts."""
    tools, messages = a_conversation(rng)
    (prompt,) = _TEMPLATE.pieces(messages, None, [tool.as_json() for tool in tools])
    # The worker renders the beginning of one more answer, which is not part of the conversation.
    texts = _CONTROL_NAMES.split(prompt.removeprefix(SPECIALS[BOS_ID]).removesuffix(SPECIALS[ASSISTANT_ID]))
    parts: list[Part] = []
    learned = False
    for text in filter(None, texts):
        token = SPECIALS.index(text) if text in SPECIALS else None
        parts.append(Part(text if token is None else token, learned and token not in _ROLE_IDS.values()))
        learned = token == ASSISTANT_ID or (learned and token != EOS_ID)
    return parts


def _exercise(rng: Random) -> list[Part]:
    """Return a chat whose answer repeats what the request names, in words or in random tokens."""
    asked: list[str | int]
    answered: list[str | int]
    if rng.random() < _RANDOM_TOKENS_SHARE:
        random_asked, random_answered = random_tokens(rng, range(FIRST_PIECE_ID, N_VOCAB))
        asked, answered = [*random_asked], [*random_answered]
    else:
        text_asked, text_answered = an_exercise(rng)
        asked, answered = [text_asked], [text_answered]
    return [
        Part(USER_ID, learned=False),
        *(Part(content, learned=False) for content in asked),
        Part(EOS_ID, learned=False),
        Part(ASSISTANT_ID, learned=False),
        *(Part(content, learned=True) for content in answered),
        Part(EOS_ID, learned=True),
    ]


def _cut(rng: Random, story: str, share: float) -> list[Part]:
    """Return a story and EOS. A `share` of the stories is split at a random letter: a prompt may end within a word."""
    at = rng.randrange(1, len(story)) if rng.random() < share else 0
    texts = [text for text in (story[:at], story[at:]) if text]
    return [*(Part(text, learned=True) for text in texts), Part(EOS_ID, learned=True)]

"""Tests of the frames that a chat or a completion streams for new text."""

import json

import pytest

from shared.answer_parts import PartsReader
from web.api.stream_format import NewText
from web.openai.chat_answers import AnswerFormat, ChatStream

TEXTS = ("plain", 'a "quote"\n\\ and\ttab', "žluť 東京", "\u2028", "<\0>")


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("usage_chunks", ["none", "last", "all"])
@pytest.mark.parametrize("has_parts", [True, False])
def test_each_frame_of_new_text_is_the_json_of_its_chunk(kind, usage_chunks, has_parts):
    readers = (PartsReader(), PartsReader()) if has_parts else None
    form = AnswerFormat(kind, "id", 'a "model"', 1, usage_chunks=usage_chunks, readers=readers, choices=2)
    stream = ChatStream(form)
    for tokens, text in enumerate(TEXTS):
        for choice in (0, 1):
            (frame,) = stream.add(NewText(text, choice, tokens))
            content = {"content": text} if kind == "chat" or has_parts else text
            chunk = form.text_chunk(content, choice) | form.usage_so_far(tokens)
            assert frame == f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"

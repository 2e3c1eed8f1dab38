"""The stream of a chat or a completion: its chunks as server-sent events."""

from collections.abc import Iterator
from typing import Any

from shared.jobs.job import JobView
from web.api.stream_format import NewText, StreamFormat, data_frame
from web.openai.chat_answers import AnswerFormat


class ChatStream(StreamFormat):
    """Writes the chunks of one answer."""

    def __init__(self, answer: AnswerFormat) -> None:
        self._answer, self.choices = answer, answer.choices

    def begin(self) -> Iterator[str]:
        """Yield the chunks that name the role."""
        return self._frames(self._answer.role_chunks(), 0)

    def add(self, new: NewText) -> Iterator[str]:
        """Yield the chunks for new text."""
        return self._frames(self._answer.text_chunks(new.text, new.choice), new.tokens)

    def end(self, view: JobView) -> Iterator[str]:
        """Yield the chunks after the text, and the mark of the end."""
        answer, tokens = self._answer, view.usage.completion_tokens if view.usage else 0
        yield from self._frames([*answer.others_chunks(view), *answer.last_chunks(view)], tokens)
        if answer.usage_chunks != "none":
            yield data_frame(answer.usage_chunk(view))
        yield "data: [DONE]\n\n"

    def _frames(self, chunks: list[dict[str, Any]], tokens: int) -> Iterator[str]:
        usage = self._answer.usage_so_far(tokens)
        return (data_frame(chunk | usage) for chunk in chunks)

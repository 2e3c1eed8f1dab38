"""An answer whose tokens a test chooses, among those that its grammar allows."""

import random
import re
from typing import Any

from shared.answer_parts import AnswerParts, read_parts
from workers.engine.detokenizer import Detokenizer
from workers.engine.events import JobSpec
from workers.engine.llama.backend import LlamaBackend


class Answer:
    """An answer whose tokens a test chooses. It fails on the first token that the grammar forbids."""

    def __init__(self, backend: LlamaBackend, request: dict[str, Any]) -> None:
        self.backend = backend
        self.job = backend.prepare(JobSpec("a", "blue", request, 300, 1e9))
        self.matcher, self.reader = self.job.grammar.start(), self.job.form.start()
        self.characters, self.text = Detokenizer(), ""

    def write(self, text: str, *, as_tokens: bool = True) -> bool:
        """Write a text. Return whether the grammar allowed all of it."""
        # llama.cpp finds user-defined tokens in every text, but none goes from one text to the next.
        texts = [text] if as_tokens else re.split(r"(?<=<)", text)
        tokens = (token for one in texts for token in self.backend._vocab.tokenize(one, parse_special=as_tokens))
        return all(self.write_token(int(token)) for token in tokens)

    def write_token(self, token: int) -> bool:
        """Write a token. Return whether the grammar allowed it."""
        if not self.matcher.allows(token):
            return False
        self.matcher.accept(token)
        self.text += self.reader.feed(self.job.form.text(self.characters, token, self.backend.piece(token)))
        return True

    def go_on(self, rng: random.Random) -> AnswerParts:
        """Write tokens at random, as long as some are allowed that do not end the answer."""
        ends = self.backend._vocab.end_tokens
        for _ in range(100):
            allowed = [] if self.matcher.ended else set(map(int, self.matcher.allowed())) - ends
            if not allowed:
                break
            self.write_token(rng.choice(sorted(allowed)))
        return self.parts

    @property
    def parts(self) -> AnswerParts:
        """The parts of the answer, which ends here."""
        return read_parts(self.text + self.reader.finish())

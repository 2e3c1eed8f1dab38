"""Holds one answer to its grammar, and keeps what the choice of its next token depends on."""

import secrets

from workers.engine.choosing.adjusted import Adjustments
from workers.engine.choosing.chooser import Choice, Chooser, NothingToChoose, Row
from workers.engine.choosing.largest import Floats
from workers.engine.sampling import Sampling
from workers.engine.structured.matcher import GrammarStuck, Matcher


class Sampler:
    """Samples the tokens of one sequence.

    With a grammar, a token is first chosen without regard to it. Only if the grammar forbids this token, another one is
    chosen from the tokens that the grammar allows. Usually the first token is allowed, and checking one token takes
    much less time than finding all allowed ones. Which tokens are chosen depends on nothing but the logits and the
    seed.
    """

    def __init__(self, sampling: Sampling, grammar: Matcher | None, end_tokens: frozenset[int]) -> None:
        self.grammar = grammar
        #: The tokens that end the answer: the vocabulary's own, and those of the job.
        self._ends = end_tokens | frozenset(sampling.stop_token_ids)
        self._adjustments = Adjustments(sampling, end_tokens)
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed % (1 << 64)
        self._choice = Choice(sampling, self._adjustments, seed)
        #: Number of tokens of the answer so far.
        self._position = 0

    @property
    def ended(self) -> bool:
        """Whether the grammar allows nothing more, because the answer is complete."""
        return self.grammar is not None and self.grammar.ended

    @property
    def grammar_cpu_s(self) -> float:
        return 0.0 if self.grammar is None else self.grammar.cpu_s

    def ends_at(self, token: int) -> bool:
        return token in self._ends

    def accept(self, token: int) -> None:
        """Go on after a token that an earlier attempt sampled. Raises GrammarSlow."""
        self._position += 1
        if self.grammar is not None:
            self.grammar.accept(token)
        self._adjustments.accept(token)

    def row(self, number: int, drafts: int = 0) -> Row | None:
        """Return what to choose from the row with this number, if the next `drafts` tokens are the drafted ones.

        None if it depends on these tokens.
        """
        if drafts and self._adjustments.penalizes:
            return None
        return Row(number, self._choice, self._position + drafts)

    def sample(self, chooser: Chooser, logits: Floats, number: int, chosen: int | NothingToChoose | None) -> int:
        """Return and accept the next token. `chosen` was chosen from its `row`; None if it was not yet.

        Raises NothingToChoose, GrammarStuck or GrammarSlow.
        """
        if chosen is None:
            (chosen,) = chooser.choose(logits, [Row(number, self._choice, self._position)])
        if isinstance(chosen, NothingToChoose):
            raise chosen
        if self.grammar is not None and not self.grammar.allows(chosen):
            row = Row(number, self._choice, self._position)
            chosen = chooser.choose_among(logits, row, self.grammar.allowed())
            if not self.grammar.allows(chosen):
                raise GrammarStuck("the sampler chose a token that the grammar forbids")
        self.accept(chosen)
        return chosen

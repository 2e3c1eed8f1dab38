"""The errors for an upstream's answer that cannot be read, or that is not what was asked for."""


class AnswerInvalid(Exception):
    """The upstream has not sent a chunk or a response of OpenAI's API, or the answer is too long."""


class ChoicesMissing(Exception):
    """The upstream has ended its answer with fewer choices than were asked for."""

    def __init__(self, given: int, asked: int) -> None:
        super().__init__(f"the upstream gave {given} of the {asked} answers that were asked for")

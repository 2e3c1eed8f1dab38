"""The error for an upstream's answer that cannot be read."""


class AnswerInvalid(Exception):
    """What the upstream sent is not a chunk or a response of OpenAI's API, or the answer is too long."""

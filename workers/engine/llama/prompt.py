"""Makes a job's prompt: tokens of its text, or of its messages in the model's chat template."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from shared.errors import ModelError
from shared.jobs.outcomes import EndCode
from workers.engine.backend import context_limit
from workers.engine.chat.answer_form import AnswerForm, ChannelForm, Form
from workers.engine.chat.chat_template import ChatTemplate, Tools
from workers.engine.chat.harmony import ASSISTANT, CHANNEL, END_MESSAGE, FINAL, MARKS, MESSAGE, START
from workers.engine.chat.parameter_grammar import text_parameters
from workers.engine.chat.reasoning import BEGIN_MARK, END_MARK
from workers.engine.chat.tool_formats import ToolFormat
from workers.engine.chat.tool_request import ToolRequest
from workers.engine.detokenizer import Detokenizer
from workers.engine.events import JobRejected, JobSpec
from workers.engine.llama.prompt_fit import published_weights
from workers.engine.llama.vocabulary import Tokens, Vocabulary

#: How many tokens of a prompt may be needed for the marks that begin the reasoning, and a line end after them.
_END_TOKENS = 16
#: How many tokens of a prompt a role and the header of a channel may need, if each byte is a token.
_HEADER_TOKENS = 64
#: The end of a prompt in harmony that leaves the channel to the model.
_ASSISTANT = START + ASSISTANT


class Prompts:
    """Makes prompts of at most `n_ctx` tokens. `lib` is llama.cpp's API. May be used from any thread."""

    def __init__(self, lib: Any, model: int, vocab: Vocabulary, n_ctx: int, *, template_cpu_ms: int) -> None:
        self._vocab, self._n_ctx = vocab, n_ctx
        #: The model's chat template, or None and the reason why the model has no usable one. Without a chat template,
        #: jobs with messages are rejected, but jobs with a prompt are accepted.
        self.template: ChatTemplate | None = None
        self._no_template_reason = "the model has no chat template"
        source = lib.llama_model_chat_template(model, None)
        if not source:
            return
        text = source.decode("utf-8", "replace")
        try:
            bos, eos = vocab.name(vocab.bos), vocab.name(vocab.eos)
            self.template = ChatTemplate(text, bos=bos, eos=eos, cpu_ms=template_cpu_ms)
        except ModelError as fault:
            self._no_template_reason = str(fault)

    def close(self) -> None:
        if self.template is not None:
            self.template.close()

    def make(self, spec: JobSpec, tools: ToolRequest | None, *, is_held: bool) -> tuple[list[Tokens], float]:
        """Return the tokens of each prompt; a job with messages has one prompt. Raises JobRejected.

        `is_held` says whether the content of the answer must match a form. The number is the CPU time that a helper
        process took.
        """
        messages, several = spec.payload.get("messages"), spec.payload.get("prompts")
        if messages is None:
            prompts = several if isinstance(several, list) and several else [spec.payload.get("prompt")]
            return self._texts(prompts), 0.0
        tokens, cpu_s = self._chat(spec, messages, tools, is_held=is_held)
        return [tokens], cpu_s

    def weights(self) -> str:
        """Return how many tokens the parts of a prompt have, as the door reads it; "" if no weights explain it."""
        template = self.template

        def chat_tokens(messages: list[dict[str, Any]], tools: Tools) -> int:
            pieces = [] if template is None else template.pieces(messages, self._vocab.control_names, tools)
            return len(self._vocab.tokenize_pieces(pieces))

        def text_tokens(text: str) -> int:
            return len(self._vocab.tokenize(text, parse_special=False))

        return published_weights(text_tokens, None if template is None else chat_tokens)

    def _chat(self, spec: JobSpec, messages: Any, tools: ToolRequest | None, *, is_held: bool) -> tuple[Tokens, float]:
        if self.template is None:
            raise JobRejected(EndCode.INVALID_VALUE, f"{self._no_template_reason}: send a prompt", "messages")
        shown = () if tools is None else tools.tools
        allowance = self.template.allowance()
        pieces = self.template.pieces(messages, self._vocab.control_names, shown, _variables(spec), allowance)
        if is_held and tools is None and self.template.traits.form.in_channels and pieces[-1].endswith(_ASSISTANT):
            # Without the header of the channel, the content would not begin at the first token.
            pieces[-1] += FINAL
        self._reject_too_long(max(len(pieces), self._vocab.min_tokens("".join(pieces))), "messages")
        return _non_empty(self._vocab.tokenize_pieces(pieces), "messages"), allowance.spent_s

    def _texts(self, prompts: list[Any]) -> list[Tokens]:
        for prompt in prompts:
            if not isinstance(prompt, str | list):
                message = "this model generates text: send a prompt or messages"
                raise JobRejected(EndCode.INVALID_VALUE, message, "prompt")
        least = sum(len(each) if isinstance(each, list) else self._vocab.min_tokens(each) for each in prompts)
        self._reject_too_long(least, "prompt")
        return [
            self._ids(each) if isinstance(each, list) else _non_empty(self._vocab.prompt(each), "prompt")
            for each in prompts
        ]

    def _ids(self, given: list[Any]) -> Tokens:
        """Return a prompt that is given as token ids, to which no token is added."""
        if not all(type(token) is int and token >= 0 for token in given):
            raise JobRejected(EndCode.INVALID_VALUE, "the ids of a prompt are whole numbers from 0", "prompt")
        self._vocab.reject_unknown(given, "prompt")
        return _non_empty(np.array(given, np.int32), "prompt")

    def answer_form(self, spec: JobSpec, prompt: Tokens, tools: ToolRequest | None, *, may_reason: bool) -> Form | None:
        """Return how the parts of the answer to this prompt are read; None if its text is the answer."""
        template, shows_parts = self.template, tools is not None or bool(spec.payload.get("parts"))
        form = None if template is None or tools is None else template.traits.form
        if template is not None and template.traits.form.in_channels and spec.payload.get("messages") is not None:
            return self._channel_form(form, prompt, shows_parts=shows_parts)
        if template is None or not shows_parts:
            return None
        reasons = template.reasons and may_reason
        end = b"".join(map(self._vocab.piece_or_name, prompt[-_END_TOKENS:].tolist())).rstrip()
        marks = ("" if form is None else form.marks) + (BEGIN_MARK + END_MARK if reasons else "")
        names = {token: name.encode() for name, token in self._vocab.control_tokens_in(marks).items()}
        began = reasons and end.endswith(BEGIN_MARK.encode())
        texts = {} if form is None or form.parameters is None or tools is None else text_parameters(tools)
        return AnswerForm(form, names, reasons, began, texts)

    def _channel_form(self, form: ToolFormat | None, prompt: Tokens, *, shows_parts: bool) -> ChannelForm:
        names = {
            token: name.encode()
            for name, token in self._vocab.control_tokens_in("".join(MARKS)).items()
            if token not in self._vocab.end_tokens
        }
        if not {START, CHANNEL, MESSAGE, END_MESSAGE}.issubset(map(bytes.decode, names.values())):
            names = {}
        marked = ChannelForm(form, names, parts=shows_parts)
        characters = Detokenizer()
        tail = (marked.text(characters, token, self._vocab.piece(token)) for token in prompt[-_HEADER_TOKENS:].tolist())
        _, found, begun = "".join(tail).rpartition(marked.marks[START] + ASSISTANT)
        return replace(marked, begun=begun if found else "")

    def text_piece(self, form: Form | None) -> Callable[[int], bytes]:
        """Return the function that returns the bytes that a token adds to an answer that is read in this form."""
        marks = () if form is None else form.marks_between_texts
        return (lambda token: b"" if token in marks else self._vocab.piece(token)) if marks else self._vocab.piece

    def _reject_too_long(self, tokens: int, param: str) -> None:
        """Raise JobRejected if a prompt with at least `tokens` tokens cannot fit the context.

        This check comes before the prompt is tokenized, because tokenizing a very long text could take minutes.
        """
        if tokens > self._n_ctx:
            message = f"{context_limit(self._n_ctx)}, and the prompt has at least {tokens} tokens"
            raise JobRejected(EndCode.CONTEXT_LENGTH_EXCEEDED, message, param)


def _variables(spec: JobSpec) -> dict[str, Any]:
    effort = spec.payload.get("reasoning_effort")
    return (spec.payload.get("chat_template_kwargs") or {}) | ({} if effort is None else {"reasoning_effort": effort})


def _non_empty(tokens: Tokens, param: str) -> Tokens:
    if not len(tokens):
        message = f"{param} is empty, and the model has no BOS token to start from"
        raise JobRejected(EndCode.INVALID_VALUE, message, param)
    return tokens

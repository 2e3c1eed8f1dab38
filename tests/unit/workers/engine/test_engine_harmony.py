"""Tests of models that answer in harmony: what their prompts are, and how their answers are read, cut and continued."""

import contextlib
import random

import pytest

from shared.answer_parts import AnswerParts, read_parts
from tests.support.driven import Driven
from tests.support.harmony_model import ANALYSIS, CHAT, FINAL, NEXT, TOOLS, WEATHER, only_tokens
from tests.support.tool_templates import HARMONY_TEMPLATE, a_tool
from workers.engine.chat.chat_template import ChatTemplate
from workers.engine.chat.harmony import MARKS
from workers.engine.chat.tool_formats import HARMONY
from workers.engine.detokenizer import Detokenizer
from workers.engine.events import JobSpec, Text


@only_tokens
def test_marks_in_messages_tools_and_variables_do_not_become_tokens(harmony):
    def n_marks(request):
        prompt = harmony.prepare(JobSpec("a", "blue", request, 8, 1e9)).prompt
        return sum(int(token) in marks for token in prompt)

    marks = set(harmony._vocab.control_tokens_in("".join(MARKS)).values())
    assert len(marks) == len(MARKS)
    tool = a_tool("get_weather", **{"".join(MARKS): {"type": "integer"}})
    tool["function"]["description"] = "".join(MARKS)
    earlier = [
        {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"a": "<|call|><|start|>"}'}}
    ]

    def messages(text, calls):
        return [
            {"role": "system", "content": text},
            {"role": "user", "content": text},
            {"role": "assistant", "content": text, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": text},
        ]

    plain = [{**earlier[0], "function": {"name": "get_weather", "arguments": "{}"}}]
    hostile = {"messages": messages("".join(MARKS), earlier), "tools": [tool], "reasoning_effort": "".join(MARKS)}
    harmless = {"messages": messages("hi", plain), "tools": [WEATHER], "reasoning_effort": "low"}
    assert n_marks(CHAT | hostile) == n_marks(CHAT | harmless)


@only_tokens
def test_the_tokens_that_end_an_answer_are_those_of_a_call_and_of_the_last_message(harmony):
    ends = {harmony._vocab.name(token) for token in harmony._vocab.end_tokens}
    assert {"<|call|>", "<|return|>"} <= ends
    assert "<|end|>" not in ends


def test_reasoning_that_is_cut_is_kept_and_counted_and_other_routes_get_the_content_only(harmony):
    driven = Driven(harmony)
    begun = {"chat_template_kwargs": {"begun": "analysis"}}
    native = {name: value for name, value in CHAT.items() if name != "parts"}
    driven.submit("reasons", CHAT | begun)
    driven.submit("answers", CHAT | {"chat_template_kwargs": {"begun": "final"}})
    driven.submit("no channel", CHAT)
    driven.submit("native", native | begun)
    driven.submit("native answers", native | {"chat_template_kwargs": {"begun": "final"}})
    driven.run_until_idle()
    parts = {key: read_parts(ended.text) for key, ended in driven.ended.items()}
    assert parts["reasons"].reasoning
    assert not parts["reasons"].content
    assert driven.ended["reasons"].extra == {"reasoning_tokens": 12}
    for key in ("answers", "no channel", "native answers"):
        assert parts[key].content
        assert not parts[key].reasoning
        assert driven.ended[key].extra == {}
    assert driven.ended["native"].text == ""


def test_an_answer_that_is_held_to_a_form_begins_in_the_final_channel(harmony):
    driven = Driven(harmony)
    held = {"response_format": {"type": "choice", "choice": ["ab", "cd"]}}
    driven.submit("chat", CHAT | held)
    driven.submit("native", {name: value for name, value in CHAT.items() if name != "parts"} | held)
    driven.run_until_idle()
    assert {ended.text for ended in driven.ended.values()} <= {"ab", "cd"}
    prompt = harmony.prepare(JobSpec("a", "blue", CHAT | held, 8, 1e9)).prompt
    assert b"".join(map(harmony._vocab.piece_or_name, prompt.tolist())).decode().endswith(f"<|start|>assistant{FINAL}")


WRITTEN = f"{ANALYSIS}bo kufe final{NEXT}{FINAL}dibo"


@only_tokens
def test_an_answer_that_another_worker_continues_has_no_gap_and_no_repeat_wherever_it_was_cut(harmony):
    tokens = tuple(map(int, harmony.tokenize(WRITTEN)))
    request = CHAT | {"max_tokens": len(tokens) + 4}
    form = harmony.prepare(JobSpec("a", "blue", request, 8, 1e9)).form
    reader, characters, before = form.start(), Detokenizer(), [""]
    for token in tokens:
        before.append(before[-1] + reader.feed(form.text(characters, token, harmony.piece(token))))
    with contextlib.closing(Driven(harmony)) as driven:
        for n in range(1, len(tokens) + 1):
            driven.submit(str(n), request, answer=tokens[:n])
        while driven.engine.step():
            pass
        driven.engine.check_idle()
        for n in range(1, len(tokens) + 1):
            assert driven.ended[str(n)].text == before[n] + driven.streamed(str(n))
        whole = read_parts(driven.ended[str(len(tokens))].text)
    assert whole.reasoning == "bo kufe final"
    assert whole.content.startswith("dibo")
    assert len(whole.content) > len("dibo")


@only_tokens
def test_a_call_that_another_worker_continues_is_the_same_wherever_it_was_cut(harmony):
    request = TOOLS | {"tool_choice": "required", "max_tokens": 60}
    with contextlib.closing(Driven(harmony)) as driven:
        driven.submit("whole", request)
        driven.run_until_idle()
        tokens = tuple(token for event in driven.events if isinstance(event, Text) for token in event.tokens)
        assert len(tokens) > 8
        for n in range(len(tokens)):
            driven.submit(str(n), request, answer=tokens[:n])
        while driven.engine.step():
            pass
        driven.engine.check_idle()
        assert read_parts(driven.ended["whole"].text).calls
        for n in range(len(tokens)):
            assert driven.ended[str(n)].text == driven.ended["whole"].text
            assert driven.ended["whole"].text.endswith(driven.streamed(str(n)))


@only_tokens
def test_a_stop_string_counts_in_texts_only_and_all_tokens_have_log_probabilities(harmony):
    tokens = tuple(map(int, harmony.tokenize(WRITTEN)))
    request = CHAT | {"max_tokens": len(tokens) + 4}
    with contextlib.closing(Driven(harmony)) as driven:
        driven.submit("logprobs", request | {"logprobs": 0}, answer=tokens)
        driven.submit("stopped", request | {"stop": ["<|end|>", "assistant", "analysis", "ibo"]}, answer=tokens)
        while driven.engine.step():
            pass
        told = driven.ended["logprobs"].extra["logprobs"]
        assert len(told) == len(tokens) + 4
        assert told[0][0] == "<|channel|>"
        stopped = driven.ended["stopped"]
        assert read_parts(stopped.text) == AnswerParts("d", "bo kufe final")
        assert (stopped.finish_reason, stopped.extra["stop_sequence"]) == ("stop", "ibo")


@only_tokens
def test_a_stop_string_counts_in_a_message_without_a_header_and_not_in_a_recipient(harmony):
    written = {"message": f"{FINAL}bo<|end|>kufe dibo", "recipient": " to=functions.dibo<|message|>bo"}
    with contextlib.closing(Driven(harmony)) as driven:
        for key, text in written.items():
            tokens = tuple(map(int, harmony.tokenize(text)))
            driven.submit(key, CHAT | {"max_tokens": len(tokens) + 1, "stop": ["ibo"]}, answer=tokens)
        while driven.engine.step():
            pass
        assert read_parts(driven.ended["message"].text) == AnswerParts("bo\n\nkufe d")
        assert driven.ended["message"].finish_reason == "stop"
        assert read_parts(driven.ended["recipient"].text).reasoning.startswith("bo")
        assert driven.ended["recipient"].finish_reason == "length"


def test_an_answer_that_is_paused_has_the_same_text(harmony):
    job = CHAT | {"max_tokens": 40, "chat_template_kwargs": {"begun": "analysis"}}
    alone, paused = Driven(harmony), Driven(harmony)
    alone.submit("a", job)
    alone.run_until_idle()
    for seed in range(3):
        paused.submit(str(seed), job)
    paused.run_with_pauses(3, random.Random(1))
    assert {ended.text for ended in paused.ended.values()} == {alone.ended["a"].text}


CALLED = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"unit": "C"}'}}
CALLED_LATER = {"id": "b", "type": "function", "function": {"name": "get_weather_at", "arguments": '{"hour": 1}'}}


def test_calls_and_results_in_earlier_messages_are_shown_one_by_one():
    template = ChatTemplate(HARMONY_TEMPLATE, bos="", eos="")
    assert template.traits.form is HARMONY
    prompt = template.render(
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "I look.", "tool_calls": [CALLED, CALLED_LATER]},
            {"role": "tool", "tool_call_id": "b", "content": "cold"},
            {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        ]
    )
    assert prompt.endswith(
        "<|start|>user<|message|>hi<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>I look.<|end|>"
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"unit": "C"}<|call|>'
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"sunny"<|end|>'
        '<|start|>assistant to=functions.get_weather_at<|channel|>commentary json<|message|>{"hour": 1}<|call|>'
        '<|start|>functions.get_weather_at to=assistant<|channel|>commentary<|message|>"cold"<|end|><|start|>assistant'
    )


def rendered(*messages):
    return ChatTemplate(HARMONY_TEMPLATE, bos="", eos="").render([{"role": "user", "content": "hi"}, *messages])


RESULT = {"role": "tool", "tool_call_id": "a", "content": "sunny"}


@pytest.mark.parametrize("content", ["", "I look."])
def test_earlier_reasoning_is_shown_once_until_the_model_has_answered(content):
    thought = {
        "role": "assistant",
        "content": content,
        "reasoning_content": "Hm.",
        "tool_calls": [CALLED, CALLED_LATER],
    }
    said = "Hm.\n\nI look." if content else "Hm."
    assert rendered(thought, RESULT).count(f"<|channel|>analysis<|message|>{said}<|end|>") == 1
    assert rendered(thought, RESULT).count("<|channel|>analysis<|message|>") == 1
    answered = {"role": "assistant", "content": "Sunny.", "reasoning_content": "So."}
    after = rendered(thought, RESULT, answered, {"role": "user", "content": "Thanks."})
    assert "Hm." not in after
    assert "So." not in after
    assert "<|start|>assistant<|channel|>final<|message|>Sunny.<|end|><|start|>user<|message|>Thanks.<|end|>" in after
    # The answer ends the reasoning before it, and not the reasoning after it.
    again = rendered(thought, RESULT, answered, {"role": "user", "content": "Later?"}, thought, RESULT)
    assert again.count("Hm.") == 1
    assert again.index("Later?") < again.index("Hm.")


def test_a_result_that_belongs_to_no_call_is_kept():
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [CALLED, CALLED_LATER]},
        {"role": "tool", "tool_call_id": "x", "content": "lost"},
    ]
    prompt = ChatTemplate(HARMONY_TEMPLATE, bos="", eos="").render(messages)
    assert '"lost"<|end|><|start|>assistant' in prompt
    assert prompt.count("<|call|>") == 2


def test_all_system_messages_are_shown():
    said = ["Be kind.", "hi", "Be brief."]
    messages = [{"role": role, "content": text} for role, text in zip(["system", "user", "system"], said, strict=True)]
    prompt = ChatTemplate(HARMONY_TEMPLATE, bos="", eos="").render(messages)
    assert "<|start|>developer<|message|>Be kind.\n\nBe brief.<|end|><|start|>user<|message|>hi<|end|>" in prompt


def test_a_tool_needs_no_description():
    template = ChatTemplate(HARMONY_TEMPLATE, bos="", eos="")
    prompt = "".join(template.pieces(CHAT["messages"], None, [{"type": "function", "function": {"name": "now"}}]))
    assert "type now = " in prompt


def test_the_effort_reaches_the_template():
    template = ChatTemplate(HARMONY_TEMPLATE, bos="", eos="")
    assert "Reasoning: high" in "".join(template.pieces(CHAT["messages"], None, (), {"reasoning_effort": "high"}))

"""Tests of calls of tools in the form of each model family: the arguments fit their schemas, whatever the model is."""

import json
import random
import re
from pathlib import Path

import pytest
from gguf import TokenType

from shared.answer_parts import Call, read_parts
from shared.settings.settings import load
from tests.support.driven import Driven
from tests.support.fits_schema import assert_fits
from tests.support.gguf_copy import copy_gguf
from tests.support.tool_templates import CONTROL, a_tool, template_of
from workers.engine.chat.call_reader import CallReader
from workers.engine.chat.chat_template import ChatTemplate
from workers.engine.chat.tool_formats import ALL, FORMS, HARMONY, HERMES
from workers.engine.detokenizer import Detokenizer
from workers.engine.events import JobRejected, JobSpec
from workers.engine.llama.backend import load_backend
from workers.engine.structured.constraint import schema_text

pytestmark = pytest.mark.thorough

WEATHER = a_tool("get_weather", city={"type": "string", "maxLength": 6}, unit={"enum": ["C", "F"]})
TIME = a_tool("get_weather_at", hour={"type": "integer", "minimum": 0, "maximum": 23})
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, TIME)}
REQUEST = {"messages": [{"role": "user", "content": "dibo kufe"}], "tools": [WEATHER, TIME], "max_tokens": 150}
NAMED = {"type": "function", "function": {"name": "get_weather_at"}}
EARLIER = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_x_0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paß"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_x_0", "content": "sunny"},
]


#: Families of each kind, with their marks as control tokens or as plain text. To a SentencePiece vocabulary, the
#: character in DeepSeek's marks is a space, so it cannot write them as plain text.
KINDS = [(form, True) for form in (*ALL, HARMONY) if form.name in CONTROL]
KINDS += [
    (form, False)
    for form in (
        HERMES,
        FORMS["llama3"],
        FORMS["mistral"],
        FORMS["mistral-id"],
        FORMS["cohere"],
        FORMS["glm-compact"],
        FORMS["minimax"],
        HARMONY,
    )
]

families = pytest.mark.parametrize(
    "family", KINDS, indirect=True, ids=lambda kind: f"{kind[0].name} {'tokens' if kind[1] else 'text'}"
)
forms = pytest.mark.parametrize("form", ALL, ids=lambda form: form.name)


@pytest.fixture(scope="module")
def family(request, model_path: Path, tmp_path_factory):
    """A random model of a family: its template, and its marks as control tokens or as plain text."""
    form, as_tokens = request.param
    names = CONTROL[form.name] if as_tokens else ()
    # No text contains these bytes, so nothing else needs their tokens.
    pieces = dict(zip([f"<0x{0xF8 + i:X}>" for i in range(len(names))], names, strict=True))
    path = tmp_path_factory.mktemp("family") / "m.gguf"
    copy_gguf(model_path, path, pieces=pieces, piece_type=TokenType.CONTROL, template=template_of(form))
    backend = load_backend(load({}, None, device="cpu", max_batch_size=4, kv_cells=4096, threads=1), path)
    yield backend
    backend.close()


def check_calls(text, finish_reason, names=frozenset(SCHEMAS)):
    parts = read_parts(text)
    assert parts.content == ""
    if finish_reason == "stop":
        assert parts.calls
    for call in parts.calls[: None if finish_reason == "stop" else -1]:
        assert call.name in names
        assert_fits(SCHEMAS[call.name], call.arguments)
    return parts.calls


@families
def test_a_required_call_has_arguments_that_fit(family):
    driven = Driven(family)
    for seed in range(2):
        driven.submit(str(seed), REQUEST | {"tool_choice": "required", "seed": seed})
    driven.submit("named", REQUEST | {"tool_choice": NAMED, "seed": 1})
    driven.submit("one", REQUEST | {"tool_choice": "required", "parallel_tool_calls": False, "seed": 2})
    driven.run_until_idle()
    for ended in driven.ended.values():
        assert ended.outcome == "succeeded", ended
        check_calls(ended.text, ended.finish_reason)
    (named,) = check_calls(driven.ended["named"].text, driven.ended["named"].finish_reason)
    assert named.name == "get_weather_at"
    assert len(read_parts(driven.ended["one"].text).calls) == 1


@families
def test_text_goes_before_a_call_and_a_begun_call_must_be_completed(family):
    """Tokens are chosen at random from those that the grammar allows, once the model has begun a call."""
    form = family._prompt_maker.template.traits.form
    rng = random.Random(form.name)
    job = family.prepare(JobSpec("a", "blue", REQUEST, 300, 1e9))
    said = "" if form.only_first else "Let me see <tool [TOOL.\n"
    completed = 0
    for _ in range(4):
        matcher, reader, characters = job.grammar.start(), job.form.start(), Detokenizer()

        def read(token, matcher=matcher, reader=reader, characters=characters):
            matcher.accept(token)
            return reader.feed(job.form.text(characters, token, family.piece(token)))

        text = ""
        for token in map(int, family.tokenize(said + form.begin)):
            assert matcher.allows(token)
            text += read(token)
        for _ in range(200):
            allowed = [] if matcher.ended else set(map(int, matcher.allowed())) - family._vocab.end_tokens
            if not allowed:
                break
            text += read(rng.choice(sorted(allowed)))
        parts = read_parts(text + reader.finish())
        assert parts.content == said.rstrip()
        for call in parts.calls[:-1]:
            assert_fits(SCHEMAS[call.name], call.arguments)
        completed += len(parts.calls) > 1 or matcher.ended
    assert completed


@forms
def test_calls_and_results_in_earlier_messages_are_shown_in_the_family_s_form(form):
    template = ChatTemplate(template_of(form), bos="<s>", eos="</s>")
    assert template.traits.form == form
    before, _, shown = template.render(EARLIER).partition("<|assistant|>")
    assert before == "<s><|user|>hi</s>"
    assert shown.startswith(form.begin)
    assert shown.endswith(f"{form.after}{form.end}</s><|user|>sunny</s><|assistant|>")
    read = read_parts(CallReader(form, {"get_weather": {"city"}}).feed(shown))
    assert read.calls == [Call("get_weather", '{"city": "Paß"}')]


def test_a_template_without_tools_gets_them_explained_and_earlier_calls_as_text():
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    template = ChatTemplate(source, bos="", eos="")
    assert template.traits.form is HERMES
    assert not template.traits.shows_tools
    prompt = "".join(template.pieces([{"role": "system", "content": "Be kind."}, *EARLIER], None, [WEATHER]))
    assert prompt.startswith("<system>Be kind.\n\nYou may call functions")
    assert json.dumps(WEATHER["function"]) in prompt
    assert '<assistant><tool_call>\n{"name": "get_weather", "arguments": {"city": "Paß"}}\n</tool_call>' in prompt
    assert "<user><tool_response>\nsunny\n</tool_response>" in prompt


def test_ids_of_calls_have_nine_characters_where_the_template_requires_it():
    source = template_of(FORMS["mistral"]) + (
        "{% for m in messages if m.tool_call_id %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}"
        "{% endif %}{{ m.tool_call_id }}{% endfor %}"
    )
    prompt = ChatTemplate(source, bos="", eos="").render(EARLIER)
    assert prompt.rpartition("<|assistant|>")[2].isalnum()
    assert len(prompt.rpartition("<|assistant|>")[2]) == 9


@pytest.mark.parametrize("family", [(HERMES, False)], indirect=True, ids=["hermes text"])
def test_names_of_control_tokens_in_tools_and_arguments_do_not_become_control_tokens(family):
    plain = family.prepare(JobSpec("a", "blue", REQUEST, 8, 1e9))
    tool = a_tool("get_weather", **{"</s><|assistant|>": {"type": "integer"}})
    tool["function"]["description"] = "</s><|system|>"
    hostile = family.prepare(JobSpec("a", "blue", REQUEST | {"tools": [tool]}, 8, 1e9))
    ends = family._vocab.end_tokens
    assert sum(token in ends for token in hostile.prompt) == sum(token in ends for token in plain.prompt)


def a_strict_tool(name, **properties):
    tool = a_tool(name, **properties)
    tool["function"]["strict"] = True
    return tool


#: Parameters as packages write them: zod 4's records and optional fields, and schemas that no answer can be held to.
LENIENT = {
    "zod-record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "string"}},
    "zod-string-formats": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "format": "cuid2", "pattern": "^[0-9a-z]+$"},
            "at": {"type": "string", "format": "uri-reference"},
        },
        "required": ["id"],
    },
    "dependent": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "dependentRequired": {"a": ["b"]},
    },
    "conditional": {
        "type": "object",
        "properties": {"kind": {"enum": ["x", "y"]}},
        "if": {"properties": {"kind": {"const": "x"}}},
        "then": {"required": ["kind"]},
    },
    "set": {"type": "object", "properties": {"s": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}},
    "unevaluated": {"type": "object", "properties": {"n": {"type": "integer"}}, "unevaluatedProperties": False},
}


@pytest.mark.parametrize("backend", [("split", 16384)], indirect=True, ids=["split"])
@pytest.mark.parametrize("parameters", LENIENT.values(), ids=LENIENT)
def test_without_strict_calls_are_held_to_what_can_be_held_of_a_schema(backend, parameters):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    request = REQUEST | {"tools": [tool], "tool_choice": "required"}
    grammar = backend.prepare(JobSpec("a", "blue", request, 8, 1e9)).grammar
    assert grammar is not None


def test_without_strict_the_rest_of_a_schema_still_holds():
    properties = {"a": {"type": "string", "enum": ["one", "two"]}}
    parameters = {"type": "object", "properties": properties, "required": ["a"], "dependentRequired": {"a": ["b"]}}
    text = schema_text(parameters, 10_000, strict=False)
    named = {"type": "object", "properties": properties, "required": ["a"]}
    assert json.loads(text) == named | {"additionalProperties": False}


@pytest.mark.parametrize("backend", [("split", 16384)], indirect=True, ids=["split"])
@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        (
            {
                "tools": [
                    a_tool("f"),
                    a_strict_tool("g", a={"type": "object", "properties": {"b": {"not": {"type": "null"}}}}),
                ]
            },
            "tools[1].function.parameters",
            "tools[1].function.parameters of 'g' cannot be used: the keyword properties.a.properties.b.not is not",
        ),
        (
            {"tools": [a_tool("f"), a_tool("g"), a_strict_tool("h", where={"type": "string", "format": "odd"})]},
            "tools[2].function.parameters",
            "tools[2].function.parameters of 'h' cannot be used: the keyword properties.where.format is not supported",
        ),
        (
            {"tools": [a_tool("f", a={"enum": ["x" * 70_000]})]},
            "tools[0].function.parameters",
            "PENSTOCK_MAX_SCHEMA_BYTES",
        ),
        ({"tools": [a_tool(f"f{i}", a={"enum": ["x" * 4000]}) for i in range(20)]}, "tools", "they have"),
        (
            {"tools": [a_tool("f"), a_tool("g", a={"pattern": "("})]},
            "tools[1].function.parameters",
            "tools[1].function.parameters of 'g' cannot be used: regex parse error: ( ^ error: unclosed group",
        ),
        ({"tools": [a_tool("f")] * 2}, "tools", "same name"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "'g'"),
        ({"messages": None, "prompt": "x"}, "tools", "need messages"),
    ],
)
def test_tools_that_cannot_be_used_are_rejected_by_name(backend, more, param, words):
    with pytest.raises(JobRejected, match=re.escape(words)) as rejected:
        backend.prepare(JobSpec("a", "blue", REQUEST | more, 8, 1e9))
    assert rejected.value.param == param


@pytest.mark.parametrize("backend", [("split", 16384)], indirect=True, ids=["split"])
def test_a_template_without_tools_gets_them_explained_unless_the_operator_refuses_them(backend, model_path: Path):
    assert not backend._prompt_maker.template.traits.shows_tools
    assert backend.facts.calls_tools
    settings = load({}, None, device="cpu", kv_cells=512, threads=1, tools_without_template="refuse")
    refusing = load_backend(settings, model_path)
    assert not refusing.facts.calls_tools
    with pytest.raises(JobRejected, match="shows no tools") as rejected:
        refusing.prepare(JobSpec("a", "blue", REQUEST, 8, 1e9))
    assert (rejected.value.code, rejected.value.param) == ("unsupported_parameter", "tools")
    assert refusing.prepare(JobSpec("a", "blue", REQUEST | {"tool_choice": "none"}, 8, 1e9)).prompt_tokens
    refusing.close()


#: A text of any characters, which is written as it is where arguments are written one by one, and values in JSON.
NOTE = a_tool(
    "note",
    text={"type": "string", "minLength": 200, "maxLength": 300},
    days={"type": "integer", "minimum": 10, "maximum": 99},
    tags={"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
)


@pytest.mark.parametrize(
    "family", [(FORMS["glm"], True), (FORMS["glm-compact"], False)], indirect=True, ids=["glm", "glm-compact"]
)
@pytest.mark.parametrize("max_tokens", [600, 60], ids=["whole", "cut"])
def test_a_call_whose_arguments_are_written_one_by_one_can_be_sent_back(family, max_tokens):
    request = REQUEST | {"tools": [NOTE], "tool_choice": "required", "parallel_tool_calls": False, "seed": 4}
    driven = Driven(family)
    driven.submit("call", request | {"max_tokens": max_tokens})
    driven.run_until_idle()
    ended = driven.ended["call"]
    (call,) = read_parts(ended.text).calls
    assert ended.finish_reason == ("stop" if max_tokens == 600 else "length")
    if ended.finish_reason == "stop":
        assert_fits(NOTE["function"]["parameters"], call.arguments)
    else:
        assert call.arguments.startswith('{"text": "')
        assert not call.arguments.endswith("}")
    function = {"name": call.name, "arguments": call.arguments}
    history = [
        *REQUEST["messages"],
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "noted"},
    ]
    driven.submit("after", request | {"messages": history, "tool_choice": "none", "max_tokens": 9})
    driven.run_until_idle()
    assert driven.ended["after"].outcome == "succeeded"

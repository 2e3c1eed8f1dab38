"""Tests that a chat template is asked what it does with tools, and gets messages that it accepts."""

import json

import pytest

from tests.support.tool_templates import a_tool, template_of
from workers.engine.chat.chat_template import ChatTemplate
from workers.engine.chat.tool_formats import FORMS, HERMES
from workers.engine.events import JobRejected

pytestmark = pytest.mark.thorough

ASKED = {"role": "user", "content": "Is it warm?"}
WEATHER = a_tool("get_weather", city={"type": "string"})
#: A template that refuses what those of Gemma 2 and of Mistral 7B refuse.
ALTERNATING = """
{%- for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- '<' + m.role + '>' + m.content }}
{%- endfor %}<assistant>"""


def call(name="get_weather", arguments='{"city": "Paris"}', number=0):
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*calls, content=None):
    """Return a message with calls, and the result of each."""
    results = [{"role": "tool", "tool_call_id": each["id"], "content": f"result {i}"} for i, each in enumerate(calls)]
    return [{"role": "assistant", "content": content, "tool_calls": list(calls)}, *results]


def prompt(source, messages, tools=()):
    return "".join(ChatTemplate(source, bos="<s>", eos="</s>").pieces(messages, None, tools))


def showing(text):
    """Return a template that shows each message, and a call as this text. It does not show tools."""
    return (
        "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}" + text + "{% endfor %}{% endfor %}<assistant>"
    )


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (HERMES, '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'),
        (FORMS["llama3"], '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'),
        (
            FORMS["deepseek-plain"],
            FORMS["deepseek-plain"].write([("{{ c.function.name }}", "{{ c.function.arguments | tojson }}")]),
        ),
    ],
    ids=["hermes", "llama3", "deepseek"],
)
def test_a_template_that_shows_calls_but_no_tools_has_them_explained_in_its_own_form(form, shown):
    source = "{# ipython <|python_tag|> #}" + showing(shown)
    template = ChatTemplate(source, bos="", eos="")
    assert template.traits.form is form
    assert not template.traits.shows_tools
    text = prompt(source, [ASKED, *called(call()), ASKED], [WEATHER])
    assert json.dumps(WEATHER["function"]) in text
    assert form.write([("the name", "{}")]) in text
    assert text.count('{"city": "Paris"}') == 1
    assert "get_weather" not in prompt(source, [ASKED])


@pytest.mark.parametrize(
    "shown",
    [
        "<tool_call>{{ c.function.name }}(city='{{ c.function.arguments.city }}')</tool_call>",
        '<tool_call>\n{"arguments": {{ c.function.arguments | tojson }}, "name": "{{ c.function.name }}"}',
        '<tool_call>\n{"tool": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}',
        "[TOOL_CALLS]<{{ c.function.name }}>{{ c.function.arguments | tojson }}",
        "{{ raise_exception('no calls') }}",
    ],
    ids=["python", "other order", "other field", "other marks", "refused"],
)
def test_a_form_that_cannot_be_read_back_is_unknown(shown):
    """The template's tools would tell the model another form than the one to which the answer is held."""
    source = "{% if tools %}{{ tools | tojson }}{% endif %}" + showing(shown)
    assert not ChatTemplate(source, bos="", eos="").traits.shows_tools
    text = prompt(source, [ASKED, *called(call())], [WEATHER])
    assert text.count('"name": "get_weather"') == 2
    assert text.startswith("<system>You may call functions")
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>' in text


@pytest.mark.parametrize(
    "form",
    [FORMS["glm"], FORMS["glm-compact"], FORMS["minimax"], FORMS["qwen-coder"], FORMS["mistral-id"]],
    ids=lambda form: form.name,
)
def test_templates_that_share_their_marks_are_distinguished_by_their_renderings(form):
    template = ChatTemplate(template_of(form), bos="", eos="")
    assert (template.traits.form, template.traits.shows_tools) == (form, True)


@pytest.mark.parametrize("before", ["", "\n", "<|python_start|><|python_end|>", "<|start|>\n"])
def test_marks_may_precede_a_call_that_counts_only_at_the_beginning_of_an_answer(before):
    shown = before + '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
    assert ChatTemplate(showing(shown), bos="", eos="").traits.form is FORMS["llama3"]
    assert ChatTemplate(showing("Call: " + shown), bos="", eos="").traits.form is not FORMS["llama3"]


@pytest.mark.parametrize("content", [None, "", []])
@pytest.mark.parametrize(
    ("condition", "turn"),
    [("m.content is not none", ""), ("m.content or not m.tool_calls", ""), ("true", "[]")],
    ids=["null", "either", "always"],
)
def test_a_message_that_only_calls_has_no_turn_that_null_or_an_empty_text_avoids(condition, turn, content):
    shown = '<tool_call>\\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    source = (
        "{% for m in messages %}<{{ m.role }}>{% for c in m.tool_calls or [] %}"
        + shown.replace("\\n", "\n")
        + "{% endfor %}"
        "{% if " + condition + " %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    text = prompt(source, [ASKED, *called(call(), content=content)])
    one_call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}'
    assert text == f"<user>[Is it warm?]<assistant>{one_call}{turn}<tool>[result 0]"


@pytest.mark.parametrize("accepted", ["text", "object"])
def test_arguments_are_given_as_the_template_takes_them(accepted):
    given = "c.function.arguments" if accepted == "text" else "c.function.arguments | tojson"
    shown = '\'<tool_call>\\n{"name": "\' + c.function.name + \'", "arguments": \' + ' + given + " + '}\\n</tool_call>'"
    text = prompt(showing("{{ " + shown + " }}"), [ASKED, *called(call())])
    assert text.count('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>') == 1


@pytest.mark.parametrize("arguments", ['["Paris"]', '"Paris"', "null", '{"city": "Par', "Paris"])
@pytest.mark.parametrize(
    "source",
    [template_of(FORMS["glm"]), template_of(HERMES), ALTERNATING, showing("{{ c.function.arguments.items() | list }}")],
    ids=["glm", "hermes", "alternating", "items"],
)
def test_arguments_that_are_no_object_are_shown_as_text(source, arguments):
    text = prompt(source, [ASKED, *called(call(arguments=arguments))], [WEATHER])
    assert arguments in text or json.dumps(arguments) in text


@pytest.mark.parametrize("before", [[], [{"role": "assistant", "content": "Hello."}]], ids=["user", "assistant"])
def test_tools_are_explained_before_the_users_first_words_where_there_is_no_system_role(before):
    source = ALTERNATING.replace("loop.index0 % 2 == 0", f"(loop.index0 + {len(before)}) % 2 == 0")
    source = source if not before else source.replace("roles must alternate", "")
    if before:
        source = source.replace("{{ raise_exception('') }}", "")
    text = prompt(source, [*before, ASKED], [WEATHER])
    told, _, said = text.partition("</tool_call>\n\n")
    assert said == "Is it warm?<assistant>"
    assert "<user>You may call functions" in told


@pytest.mark.parametrize("condition", ["m.role == 'system'", "messages[0].role == 'system'"])
def test_a_system_message_that_the_client_wrote_is_not_moved(condition):
    source = ALTERNATING.replace("m.role == 'system'", condition, 1)
    with pytest.raises(JobRejected, match=r"messages: \[0\]: .*System role not supported"):
        prompt(source, [{"role": "system", "content": "Be kind."}, ASKED], [WEATHER])


def test_objects_in_arguments_are_json_where_the_template_would_show_them_in_pythons_notation():
    source = template_of(FORMS["qwen-coder"]).replace("value if value is string else value | tojson", "value")
    given = {"city": "Paris", "where": {"lat": [1, None], "near": True}}
    text = prompt(source, [ASKED, *called(call(arguments=json.dumps(given)))])
    assert "<parameter=city>\nParis\n</parameter>" in text
    assert f"<parameter=where>\n{json.dumps(given['where'])}\n</parameter>" in text


@pytest.mark.parametrize("n_calls", [1, 2, 3])
@pytest.mark.parametrize("after", [[], [ASKED]], ids=["results last", "the user last"])
def test_results_are_one_message_where_roles_must_alternate(n_calls, after):
    calls = [call(number=i) for i in range(n_calls)]
    text = prompt(ALTERNATING, [ASKED, *called(*calls), *after], [WEATHER])
    results = "\n".join(f"<tool_response>\nresult {i}\n</tool_response>" for i in range(n_calls))
    assert text.endswith(f"<user>{results}" + "\n\nIs it warm?" * len(after) + "<assistant>")


@pytest.mark.parametrize("n_calls", [2, 3])
@pytest.mark.parametrize(
    "fault", ["{{ raise_exception('only single tool-calls at once!') }}", ""], ids=["refused", "lost"]
)
def test_calls_get_a_message_each_where_the_template_shows_only_one(n_calls, fault):
    shown = '{% if loop.first %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
    source = showing(shown + "{% else %}" + fault + "{% endif %}")
    calls = [call(arguments=f'{{"city": "City {i}"}}', number=i) for i in range(n_calls)]
    text = prompt(source, [ASKED, *called(*calls)])
    each = (
        f'<assistant>{{"name": "get_weather", "parameters": {{"city": "City {i}"}}}}<tool>result {i}'
        for i in range(n_calls)
    )
    assert text == "<user>Is it warm?" + "".join(each) + "<assistant>"


def test_a_text_beside_a_call_gets_a_message_of_its_own_where_the_template_would_drop_one_of_them():
    shown = '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    source = showing(shown).replace("{{ m.content or '' }}", "{{ m.content if not m.tool_calls else '' }}")
    text = prompt(source, [ASKED, *called(call(), content="Let me see.")])
    assert "<assistant>Let me see.<assistant><tool_call>" in text


@pytest.mark.parametrize(
    "function",
    [
        {"name": "now"},
        {"name": "now", "description": "The time"},
        {"name": "now", "parameters": {"type": "object", "properties": {}}},
        {"name": "now", "description": None, "parameters": None},
    ],
    ids=["bare", "no parameters", "no description", "null"],
)
def test_a_tool_without_description_or_parameters_is_shown_by_a_template_that_needs_them(function):
    needs = "{{ f.name + ': ' + f.description }} {{ f.parameters.items() | list | length }}"
    source = "{% for t in tools or [] %}{% set f = t.function %}" + needs + "{% endfor %}" + template_of(HERMES)
    template = ChatTemplate(source, bos="", eos="")
    assert template.traits.shows_tools
    text = prompt(source, [ASKED], [{"type": "function", "function": function}])
    assert text.startswith(f"now: {function.get('description') or ''} ")


def test_a_tool_that_the_template_fails_on_is_explained():
    source = "{% for t in tools or [] %}{{ t.function.parameters.properties.city.type + '' }}{% endfor %}"
    source = source.replace("city", "zq_text") + template_of(HERMES)
    text = prompt(source, [ASKED], [WEATHER])
    assert json.dumps(WEATHER["function"]) in text
    assert "<|system|>You may call functions" in text


@pytest.mark.parametrize("at", [0, 1, 4, 9])
@pytest.mark.parametrize("fault", ["{{ raise_exception('not this') }}", "{{ 1 / 0 }}", "{{ m.nothing.at_all }}"])
def test_a_refusal_of_the_template_names_the_message(at, fault):
    source = "{% for m in messages %}{% if m.content == 'bad' %}" + fault + "{% endif %}{% endfor %}"
    messages = [{"role": "user", "content": "bad" if i == at else "good"} for i in range(10)]
    with pytest.raises(JobRejected, match=rf"messages: \[{at}\]: the model's chat template") as rejected:
        prompt(source, messages)
    assert rejected.value.param == "messages"


@pytest.mark.parametrize(
    ("filtered", "right"),
    [
        ("'é' | tojson", '"é"'),
        ("'é' | tojson(ensure_ascii=True)", '"\\u00e9"'),
        ("'é' | tojson(true)", '"\\u00e9"'),
        ("{'b': 1, 'a': [2]} | tojson(sort_keys=True, separators=(',', ':'))", '{"a":[2],"b":1}'),
        ("[1] | tojson(indent=2)", "[\n  1\n]"),
        ("[1] | tojson(false, 1)", "[\n 1\n]"),
        ("'<&>' | tojson", '"<&>"'),
    ],
)
def test_tojson_has_the_options_of_the_reference(filtered, right):
    assert prompt("{{ " + filtered + " }}", [ASKED]) == right


@pytest.mark.parametrize("unset", ["tools", "documents"])
def test_variables_without_a_value_are_defined_as_none(unset):
    assert prompt("{{ " + unset + " is defined and " + unset + " is none }}", [ASKED]) == "True"

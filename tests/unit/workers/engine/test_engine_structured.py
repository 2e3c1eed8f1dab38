"""Tests of answers that follow a schema: they fit it, whatever the model prefers, and do not depend on the load."""

import contextlib
import json
import random

import pytest

from shared.jobs.schema_keywords import UNSUPPORTED
from tests.support.cpu_time import cpu_time_below
from tests.support.fits_schema import assert_fits
from tests.support.schemas import FEATURES, an_object
from workers.engine.events import JobRejected, JobSpec
from workers.engine.structured.constraint import Constraint, read_constraint

MAX_BYTES = 65_536

one_backend = pytest.mark.parametrize("backend", [("split", 16384)], indirect=True, ids=["split"])


def a_format(schema):
    return {"type": "json_schema", "schema": schema}


def prepare(backend, response_format):
    return backend.prepare(JobSpec("a", "blue", {"prompt": "x", "response_format": response_format}, 1, 1e9))


def token_of(backend, piece):
    return next(token for token in range(backend.n_vocab) if backend.piece(token) == piece)


@one_backend
@pytest.mark.parametrize("name", FEATURES)
def test_the_model_s_answers_fit_their_schema(driven, name):
    for ended in driven.answers(FEATURES[name], max_tokens=300, temperature=1.0):
        assert ended.outcome == "succeeded", ended
        if ended.finish_reason == "stop":
            assert_fits(FEATURES[name], ended.text)


@one_backend
@pytest.mark.parametrize("name", FEATURES)
def test_tokens_chosen_at_random_fit_the_schema_if_they_come_to_an_end(backend, name):
    """The choice prefers tokens of one character, because every text can be written with them."""
    rng = random.Random(name)
    grammar = prepare(backend, a_format(FEATURES[name])).grammar
    ended = 0
    for _ in range(5):
        matcher, text = grammar.start(), b""
        for _ in range(300):
            if matcher.ended:
                break
            token = int(rng.choice(matcher.allowed()))
            assert matcher.allows(token)
            matcher.accept(token)
            if token in backend._vocab.end_tokens:
                break
            assert backend.piece(token), "a control token adds no text"
            text += backend.piece(token)
        else:
            continue
        ended += 1
        assert_fits(FEATURES[name], text)
    assert ended or name in {"string", "integer", "number", "recursive", "additional", "email"}, (
        "no answer came to its end"
    )


def test_the_same_seed_gives_the_same_answer_alone_and_beside_other_jobs(driven):
    payload = {"prompt": "dibo", "max_tokens": 60, "temperature": 1.5, "seed": 7}
    payload["response_format"] = a_format(an_object(a={"type": "string"}, b={"type": "integer"}))
    driven.submit("alone", payload)
    driven.run_until_idle()
    for i in range(7):
        form = a_format(FEATURES["nested"]) if i % 2 else a_format({"type": "object"})
        driven.submit(f"other{i}", {"prompt": "kufe dibo", "max_tokens": 40, "seed": i, "response_format": form})
    driven.submit("busy", payload)
    driven.run_until_idle()
    assert driven.ended["busy"].text == driven.ended["alone"].text


def test_an_answer_whose_tokens_the_grammar_allows_is_the_one_without_a_grammar(driven):
    payload = {"prompt": "dibo", "max_tokens": 30, "temperature": 1.0, "seed": 5}
    driven.submit("free", payload)
    anything = {"type": "regex", "regex": r"(.|\n)*"}
    driven.submit("held", payload | {"response_format": anything})
    driven.run_until_idle()
    assert driven.ended["held"].text == driven.ended["free"].text


@one_backend
@pytest.mark.parametrize("fields", [{"repeat_penalty": 1.3, "presence_penalty": 1.0}, {"temperature": 0}, {"top_k": 1}])
def test_penalties_and_greedy_sampling_work_with_a_schema(driven, fields):
    schema = an_object(a={"enum": ["dibo", "kufe"]}, b={"type": "boolean"})
    for ended in driven.answers(schema, max_tokens=100, **fields):
        assert ended.finish_reason == "stop"
        assert_fits(schema, ended.text)


def test_an_answer_ends_where_the_grammar_ends_even_if_the_model_does_not_want_to_end_it(driven):
    bias = {str(end): -100 for end in driven.engine.backend._vocab.end_tokens}
    form = {"type": "choice", "choice": ["ab"]}
    driven.submit("a", {"prompt": "dibo", "max_tokens": 9, "logit_bias": bias, "response_format": form})
    driven.run_until_idle()
    assert (driven.ended["a"].text, driven.ended["a"].finish_reason) == ("ab", "stop")


def test_an_answer_cut_by_max_tokens_ends_with_length_inside_the_json_text(driven):
    form = a_format(an_object(a={"type": "string", "minLength": 50}))
    driven.submit("a", {"prompt": "dibo", "max_tokens": 5, "response_format": form})
    driven.run_until_idle()
    assert driven.ended["a"].finish_reason == "length"
    assert driven.ended["a"].text.startswith("{")


def test_a_stop_string_ends_an_answer_with_a_schema(driven):
    form = a_format(an_object(a={"type": "boolean"}))
    driven.submit("a", {"prompt": "dibo", "max_tokens": 50, "stop": ["a"], "response_format": form})
    driven.run_until_idle()
    ended = driven.ended["a"]
    assert ended.finish_reason == "stop"
    assert ended.text.endswith('"')


@one_backend
def test_a_biased_control_token_never_gets_into_an_answer(driven):
    backend = driven.engine.backend
    special = backend._vocab.table().special - backend._vocab.end_tokens
    assert special
    lark = "start: <[0-5]> | " + " | ".join(f'"{letter}"' for letter in "ab")
    for key, form in {"schema": a_format({"type": "string"}), "lark": {"type": "grammar", "grammar": lark}}.items():
        bias = {str(token): 100 for token in special}
        driven.submit(key, {"prompt": "x", "max_tokens": 20, "logit_bias": bias, "seed": 1, "response_format": form})
    driven.run_until_idle()
    assert driven.ended["schema"].text.startswith('"')
    assert driven.ended["lark"].text in {"a", "b"}


@one_backend
@pytest.mark.parametrize("text", [{"type": "string", "maxLength": 4}, {"type": "string", "pattern": "^.{1,4}$"}])
def test_a_string_contains_no_raw_control_character_even_if_a_bias_favors_them(driven, text):
    backend = driven.engine.backend
    bias = {str(token_of(backend, piece)): 100 for piece in (b"\n", b"\t", b"\x01")}
    form = a_format(an_object(x=text))
    driven.submit("a", {"prompt": "dibo", "max_tokens": 300, "seed": 1, "logit_bias": bias, "response_format": form})
    driven.run_until_idle()
    assert_fits(an_object(x=text), driven.ended["a"].text)


@one_backend
def test_the_logprobs_of_an_answer_with_a_schema_are_those_of_the_model(driven):
    """They are computed before the grammar, so a token that the grammar forced may be unlikely, never impossible."""
    form = a_format(an_object(a={"type": "boolean"}))
    driven.submit("a", {"prompt": "dibo", "max_tokens": 50, "logprobs": 2, "seed": 3, "response_format": form})
    driven.run_until_idle()
    ended = driven.ended["a"]
    entries = ended.extra["logprobs"]
    assert "".join(token for token, _, _ in entries) == ended.text
    assert all(-100 < logprob <= 0 for _, logprob, _ in entries)
    assert all(top[0][1] >= logprob for _, logprob, top in entries)


CHOICES = ['say "hi"\n', "é水", "back\\slash", "\t\u2028", "a", "ab", " x", "\x7f"]


@one_backend
@pytest.mark.parametrize("choices", [CHOICES, ["ab"], ["a", "ab", "abc"]])
def test_an_answer_is_one_of_the_choices(driven, choices):
    for seed in range(6):
        form = {"type": "choice", "choice": choices}
        driven.submit(str(seed), {"prompt": "dibo", "seed": seed, "temperature": 3.0, "response_format": form})
    driven.run_until_idle()
    assert {ended.text for ended in driven.ended.values()} <= set(choices)


def test_an_answer_matches_a_regular_expression_or_a_grammar(driven):
    lark = 'start: sum\nsum: DIGIT ("+" DIGIT)*\nDIGIT: /[0-9]/'
    forms = {"regex": {"type": "regex", "regex": "[a-c]{3}-[0-9]+!"}, "grammar": {"type": "grammar", "grammar": lark}}
    for key, form in forms.items():
        driven.submit(key, {"prompt": "dibo", "seed": 3, "max_tokens": 60, "response_format": form})
    driven.run_until_idle()
    regex, grammar = driven.ended["regex"], driven.ended["grammar"]
    assert regex.finish_reason == grammar.finish_reason == "stop"
    assert (regex.text[3], regex.text[-1]) == ("-", "!")
    assert set(regex.text[:3]) <= set("abc")
    assert all(part.isdigit() for part in grammar.text.split("+"))


#: Keyword that is not supported → a schema that it restricts.
RESTRICTING = {
    "not": {"not": {"type": "null"}},
    "if": {"if": {"type": "null"}, "then": False},
    "else": {"else": {"type": "null"}, "if": {"type": "null"}},
    "contains": {"contains": {}},
    "propertyNames": {"propertyNames": {"type": "string", "minLength": 2}},
    "dependencies": {"dependencies": {"a": ["b"]}},
    "dependentRequired": {"dependentRequired": {"a": [], "b": ["c"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {"required": ["b"]}}},
    "unevaluatedItems": {"unevaluatedItems": False},
    "unevaluatedProperties": {"unevaluatedProperties": {"type": "string"}},
    "uniqueItems": {"uniqueItems": True, "maxItems": 2},
    "$dynamicRef": {"$dynamicRef": "#a"},
    "$recursiveRef": {"$recursiveRef": "#"},
    "format": {"type": ["string", "null"], "format": "unheard-of"},
}
#: Schemas with keywords that are not supported, and that restrict nothing.
IDLE = [
    {"propertyNames": {"type": "string"}},
    {"propertyNames": {}},
    {"propertyNames": True},
    {"propertyNames": {"type": ["string", "null"], "minLength": 0, "description": "any name"}},
    {"unevaluatedProperties": True},
    {"unevaluatedProperties": {"description": "anything"}},
    {"unevaluatedItems": {}},
    {"dependentRequired": {}},
    {"dependentRequired": {"a": []}},
    {"dependentSchemas": {"a": True}},
    {"dependencies": {}},
    {"dependencies": {"a": [], "b": {}}},
    {"if": {"type": "null"}},
    {"if": {"type": "null"}, "then": True, "else": {}},
    {"then": {"type": "null"}},
    {"not": False},
    {"not": {"not": {}}},
    {"maxContains": 2},
    {"minContains": 1, "maxContains": 2},
    {"contains": {"type": "null"}, "minContains": 0},
    {"uniqueItems": False},
    {"uniqueItems": True, "maxItems": 1},
    {"type": "integer", "format": "int32"},
]


@one_backend
@pytest.mark.parametrize("schema", IDLE, ids=str)
def test_a_keyword_that_restricts_nothing_is_accepted_also_deep_inside(backend, schema):
    assert prepare(backend, a_format(schema)).grammar is not None
    assert prepare(backend, a_format(an_object(x={"anyOf": [{"type": "array", "items": schema}]}))).grammar is not None


@one_backend
@pytest.mark.parametrize("keyword", RESTRICTING)
def test_a_keyword_that_cannot_be_enforced_is_refused_with_its_place(backend, keyword):
    schema = an_object(x={"type": "array", "items": RESTRICTING[keyword]})
    with pytest.raises(JobRejected) as caught:
        prepare(backend, a_format(schema))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "response_format")
    assert f"the keyword properties.x.items.{keyword} is not supported" in caught.value.message


@one_backend
@pytest.mark.parametrize("keyword", sorted(UNSUPPORTED))
def test_the_list_of_unsupported_keywords_is_that_of_the_library(backend, keyword):
    verdict = backend._grammars._probes.check(json.dumps({"grammars": [{"json_schema": {keyword: {}}}]}))
    assert f'Unimplemented keys: ["{keyword}"]' in verdict.error


@one_backend
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "uniqueItems": True}, "the keyword uniqueItems is not supported"),
        ({"type": "string", "format": "unheard-of"}, "the keyword format is not supported"),
        ({"type": "nonsense"}, "Invalid type: nonsense"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"$ref": "https://example.com/schema.json"}, "does not fetch"),
        ({"enum": []}, "Unsatisfiable"),
        ({"$ref": "#"}, "no text matches it"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "Unsatisfiable"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "look-around"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "minLength"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, "oneOf"),
        (
            {"x-guidance": {"lenient": True}, "type": "string", "format": "unheard-of"},
            "the keyword format is not supported",
        ),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_with_the_reason(backend, schema, message):
    with pytest.raises(JobRejected, match=message) as caught:
        prepare(backend, a_format(schema))
    assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize(
    "value",
    [
        {"type": "xml"},
        "json_object",
        {"type": "json_schema"},
        {"type": "json_schema", "schema": []},
        {"type": "regex"},
        {"type": "regex", "regex": ""},
        {"type": "grammar", "grammar": 7},
        {"type": "choice", "choice": []},
        {"type": "choice", "choice": [""]},
        {"type": "choice", "choice": ["a"] * 1_001},
        {"type": "choice", "choice": "a"},
    ],
)
def test_an_invalid_response_format_is_rejected_with_its_value(value):
    with pytest.raises(JobRejected, match=r"^response_format=") as caught:
        read_constraint({"response_format": value}, max_bytes=MAX_BYTES)
    assert (caught.value.code, caught.value.param) == ("invalid_value", "response_format")


LONG = "a" * 4_097


@pytest.mark.parametrize(
    "value",
    [
        {"type": "regex", "regex": LONG},
        {"type": "choice", "choice": ["a", LONG]},
        {"type": "grammar", "grammar": f'start: "a" | "{LONG}"'},
        {"type": "grammar", "grammar": f"start: X\nX: /{LONG}/i"},
        {"type": "grammar", "grammar": f'// don"t /\nstart: "a\\"{LONG}"'},
        {"type": "grammar", "grammar": 'start: %json {"const": "' + LONG + '"}'},
        {"type": "json_schema", "schema": {"properties": {LONG: {}}}},
    ],
    ids=["regex", "choice", "text", "pattern", "after a comment", "schema in a grammar", "name"],
)
def test_no_text_of_a_response_format_may_have_more_than_4096_characters(value):
    with pytest.raises(JobRejected, match="4096"):
        read_constraint({"response_format": value}, max_bytes=MAX_BYTES)


def test_long_comments_and_many_texts_of_a_grammar_are_accepted():
    quoted = " | ".join(f'"{"b" * 100}" | /c\\/{"d" * 100}/' for _ in range(100))
    lark = f'# {LONG} "\nstart: {quoted} // {LONG} /\n'
    form = {"type": "grammar", "grammar": lark}
    assert read_constraint({"response_format": form}, max_bytes=MAX_BYTES) == Constraint("lark", lark)


@pytest.mark.parametrize("part", ["\\/", '\\"', '"', "/", "#\n", '/\\"'])
def test_a_grammar_with_parts_that_do_not_end_is_read_in_time_proportional_to_its_length(part):
    form = {"type": "grammar", "grammar": "/" + part * (60_000 // len(part))}
    with cpu_time_below(0.5), contextlib.suppress(JobRejected):
        read_constraint({"response_format": form}, max_bytes=MAX_BYTES)


def test_a_schema_is_read_in_the_openai_form_and_in_the_plain_form():
    schema = {"type": "object"}
    openai = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    json_object = {"type": "json_object", "schema": schema}
    found = [read_constraint({"response_format": one}, max_bytes=MAX_BYTES) for one in (openai, json_object)]
    assert found == [read_constraint({"response_format": a_format(schema)}, max_bytes=MAX_BYTES)] * 2
    assert read_constraint({"response_format": {"type": "text"}}, max_bytes=MAX_BYTES) is None
    assert read_constraint({}, max_bytes=MAX_BYTES) is None

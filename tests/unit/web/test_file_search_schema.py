"""Tests of the tool `file_search` in the body of `/v1/responses`."""

import pytest
from pydantic import ValidationError

from web.http.api_errors import ApiError, field_errors, invalid_value
from web.openai.responses_schema import ResponsesWithTools

STORE = "vs_1"
SEARCH = {"type": "file_search", "vector_store_ids": [STORE]}
LOOK = {"type": "function", "name": "look"}
EQUALS = {"type": "eq", "key": "team", "value": "blue"}


def body(**fields):
    return ResponsesWithTools.model_validate({"model": "m", "input": "hi", "tools": [SEARCH]} | fields)


def search(**fields):
    return body(tools=[SEARCH | fields]).file_search()


def test_a_search_has_defaults_and_options():
    plain = search()
    assert (plain.stores, plain.k, plain.parsed_filter, plain.threshold, plain.shows_results, plain.required) == (
        (STORE,),
        6,
        None,
        0.0,
        False,
        False,
    )
    options = {"ranker": "auto", "score_threshold": 0.25, "hybrid_search": {"embedding_weight": 1, "text_weight": 1}}
    full = search(vector_store_ids=["vs_1", "vs_2"], max_num_results=50, filters=EQUALS, ranking_options=options)
    assert (full.stores, full.k, full.threshold, full.parsed_filter.key) == (("vs_1", "vs_2"), 50, 0.25, "team")
    nulls = {"max_num_results": None, "filters": None, "ranking_options": {"ranker": None}}
    assert search(**nulls) == plain
    assert body(include=["file_search_call.results"]).file_search().shows_results


@pytest.mark.parametrize(
    ("fields", "code", "param", "value"),
    [
        ({"vector_store_ids": None}, "invalid_value", "tools[0].vector_store_ids", "required"),
        ({"vector_store_ids": []}, "invalid_value", "tools[0].vector_store_ids", "[]"),
        ({"vector_store_ids": ["a", "b", "c", "d", "e"]}, "invalid_value", "tools[0].vector_store_ids", "5 items"),
        ({"vector_store_ids": ["a", "a"]}, "invalid_value", "tools[0].vector_store_ids", "'a'"),
        ({"vector_store_ids": [7]}, "invalid_value", "tools[0].vector_store_ids[0]", "7"),
        ({"max_num_results": 51}, "invalid_value", "tools[0].max_num_results", "51"),
        ({"max_num_results": 0}, "invalid_value", "tools[0].max_num_results", "0"),
        ({"filters": EQUALS | {"type": "is"}}, "invalid_value", "tools[0].filters.type", "'is'"),
        ({"ranking_options": {"score_threshold": 2}}, "invalid_value", "tools[0].ranking_options.score_threshold", "2"),
        ({"ranking_options": {"ranker": "best"}}, "invalid_value", "tools[0].ranking_options.ranker", "'best'"),
        (
            {"ranking_options": {"hybrid_search": {"embedding_weight": 1, "text_weight": 0}}},
            "unsupported_parameter",
            "tools[0].ranking_options.hybrid_search",
            "text_weight=0",
        ),
        ({"colour": "red"}, "invalid_value", "tools[0].colour", "colour"),
    ],
)
def test_the_error_names_the_field_and_the_value(fields, code, param, value):
    with pytest.raises(ApiError) as caught:
        search(**fields)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert value in caught.value.message


def test_two_searches_and_a_search_beside_retrieval_are_refused():
    with pytest.raises(ApiError) as twice:
        body(tools=[SEARCH, LOOK, SEARCH]).file_search()
    assert twice.value.param == "tools[2]"
    with pytest.raises(ApiError) as both:
        body(retrieval={"collection": "handbook"}).file_search()
    assert (both.value.param, "tools[0]" in both.value.message) == ("retrieval", True)


ALLOWED = {"type": "allowed_tools", "mode": "required"}


@pytest.mark.parametrize(
    ("tools", "choice", "searches", "shown", "forced"),
    [
        ([SEARCH], None, "may", False, None),
        ([SEARCH], "none", None, False, None),
        ([SEARCH], "required", "must", False, None),
        ([SEARCH], {"type": "file_search"}, "must", False, None),
        ([SEARCH, LOOK], "auto", "may", True, None),
        ([SEARCH, LOOK], "none", None, False, None),
        ([SEARCH, LOOK], "required", "may", True, "required"),
        ([LOOK, SEARCH], {"type": "file_search"}, "must", True, None),
        ([SEARCH, LOOK], {"type": "function", "name": "look"}, None, True, {"type": "function"}),
        ([SEARCH, LOOK], ALLOWED | {"tools": [{"type": "file_search"}]}, "must", False, None),
        ([SEARCH, LOOK], ALLOWED | {"tools": [{"type": "function", "name": "look"}]}, None, True, "required"),
        ([SEARCH, LOOK], ALLOWED | {"tools": [{"type": "file_search"}, LOOK]}, "may", True, "required"),
    ],
)
def test_the_choice_says_whether_to_search_and_what_the_functions_are(tools, choice, searches, shown, forced):
    asked = body(tools=tools, tool_choice=choice)
    found = asked.file_search()
    assert (None if found is None else "must" if found.required else "may") == searches
    payload = asked.payload()
    assert [tool["function"]["name"] for tool in payload.get("tools", [])] == (["look"] if shown else [])
    given = payload.get("tool_choice")
    assert ({"type": given["type"]} if isinstance(given, dict) else given) == forced
    form = asked.form()
    assert [tool["type"] for tool in form["tools"]] == [tool["type"] for tool in tools]
    assert form["tool_choice"] == (choice or "auto") or choice["type"] == "allowed_tools"


def test_a_response_repeats_the_search_or_only_its_stores_if_the_tools_are_too_long():
    assert body(tools=[SEARCH | {"filters": EQUALS}]).form()["tools"] == [SEARCH | {"filters": EQUALS}]
    long = LOOK | {"description": "x" * 10_000}
    assert body(tools=[SEARCH | {"filters": EQUALS}, long]).form()["tools"][0] == SEARCH


def test_without_a_database_the_search_is_left_out_and_named_as_before():
    asked = body(tools=[{"type": "file_search"}, LOOK], include=["file_search_call.results"]).without_file_search()
    assert asked.ignored == ("tools.file_search", "include")
    assert asked.file_search() is None
    assert [tool["type"] for tool in asked.form()["tools"]] == ["function"]
    for choice, code in (({"type": "file_search"}, "unsupported_parameter"), ("required", "invalid_value")):
        with pytest.raises(ApiError) as caught:
            body(tool_choice=choice).without_file_search()
        assert caught.value.code == code
    unsearched = body(tools=[LOOK], include=["file_search_call.results"])
    assert (unsearched.ignored, unsearched.without_file_search()) == (("include",), unsearched)


def test_a_search_in_the_input_is_left_out_of_the_prompt():
    item = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["hi"], "results": None}
    cited = {"type": "file_citation", "file_id": "file-1", "filename": "a.md", "index": 2}
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "ok", "annotations": [cited]}],
    }
    messages = body(input=[{"role": "user", "content": "hi"}, item, said, {"role": "user", "content": "and?"}])
    assert [message["content"] for message in messages.payload()["messages"]] == ["hi", "ok", "and?"]
    with pytest.raises((ValidationError, ApiError)) as caught:
        body(input=[item])
    error = caught.value
    found = error if isinstance(error, ApiError) else invalid_value(field_errors(error))
    assert found.param == "input"

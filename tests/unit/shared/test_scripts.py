"""A script's header is its signature: what does not fit it is refused before anything is sent."""

import re

import pytest

from shared.errors import ScriptError
from shared.store import scripts
from shared.store.keys import BY_NAME

GOOD = """-- sample: shows a header.
-- KEYS config rq_job
--      bell
-- ARGV
--   id text · the job
--   count int · how many
--   held rest · id, token, …
-- ANSWERS done gone
--   done: what was done
-- KEEPS 1 10
-- USES clock

return { 'done' }
"""


@pytest.fixture
def cancel() -> scripts.Script:
    return scripts.load("cancel")


@pytest.mark.parametrize("name", scripts.names())
def test_every_script_fits_its_header(name):
    script = scripts.load(name)
    assert script.header.name == name
    assert script.header.summary.endswith(".")
    assert script.header.answers
    assert script.header.keeps
    assert all(1 <= number <= 10 for number in script.header.keeps)


@pytest.mark.parametrize("name", scripts.names())
def test_every_key_of_a_script_is_known_and_spelled_nowhere_else(name):
    """A script learns its keys from the prelude; a literal key in its body would be a second home."""
    _, body = scripts.read(f"{name}.lua")
    code = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--"))
    assert not re.findall(r"'(?:penstock|rq):[^']*'", code)
    for key in scripts.load(name).header.keys:
        assert f"local k_{key} = '{BY_NAME[key].prefix}'" in scripts.load(name).source


#: What admits may fail at maxmemory; snapshot and quote write nothing; what erase does frees memory.
MAY_FAIL_WITHOUT_MEMORY = {"admit", "snapshot", "quote", "erase"}


@pytest.mark.parametrize("name", sorted(set(scripts.names()) - MAY_FAIL_WITHOUT_MEMORY))
def test_every_other_script_frees_memory_before_it_writes(name):
    assert "redis.call('HDEL', k_config, '')" in scripts.load(name).source


def test_a_header_is_read_into_its_parts():
    header = scripts.parse("sample", GOOD)
    assert header.summary == "shows a header."
    assert header.keys == ("config", "rq_job", "bell")
    assert header.args == (scripts.Arg("id", "text"), scripts.Arg("count", "int"), scripts.Arg("held", "rest"))
    assert header.answers == {"done", "gone"}
    assert header.keeps == (1, 10)
    assert header.uses == ("clock",)


@pytest.mark.parametrize(
    ("line", "instead", "told"),
    [
        ("-- sample: shows", "-- other: shows", "first line"),
        ("-- KEYS config rq_job", "-- KEYS config rq_jobs", "rq_jobs"),
        ("--   count int · how many", "--   count float · how many", "count float"),
        ("--   count int · how many", "--   count int", "'count int'"),
    ],
)
def test_a_bad_header_is_refused_quoting_what_is_wrong(line, instead, told):
    with pytest.raises(ScriptError, match=told):
        scripts.parse("sample", GOOD.replace(line, instead))


def test_a_file_without_a_header_is_refused():
    with pytest.raises(ScriptError, match="first line"):
        scripts.parse("sample", "return { 'done' }\n")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder of scripts in place of shared/lua; writes `body` as sample.lua and loads it."""
    (tmp_path / "lua" / "lib").mkdir(parents=True)
    monkeypatch.setattr(scripts, "files", lambda _: tmp_path)
    scripts.load.cache_clear()

    def load(body: str, **libs: str) -> scripts.Script:
        (tmp_path / "lua" / "sample.lua").write_text(body)
        for name, text in libs.items():
            (tmp_path / "lua" / "lib" / f"{name}.lua").write_text(text)
        return scripts.load("sample")

    yield load
    scripts.load.cache_clear()


def test_a_key_that_the_header_does_not_name_is_refused(elsewhere):
    with pytest.raises(ScriptError, match="names keys"):
        elsewhere("-- sample: x.\n-- KEYS config\n-- ANSWERS done\nreturn { 'done', k_config, k_bell }\n")


def test_a_key_that_the_body_does_not_use_is_refused(elsewhere):
    with pytest.raises(ScriptError, match="names keys"):
        elsewhere("-- sample: x.\n-- KEYS config bell\n-- ANSWERS done\nreturn { 'done', k_config }\n")


@pytest.mark.parametrize("answers", ["done", "done gone lost", ""])
def test_answers_that_body_and_header_do_not_share_are_refused(elsewhere, answers):
    with pytest.raises(ScriptError, match="body answers"):
        elsewhere(f"-- sample: x.\n-- ANSWERS {answers}\nif x then\nreturn {{ 'gone' }}\nend\nreturn {{ 'done' }}\n")


def test_a_library_stands_once_after_what_it_uses(elsewhere):
    script = elsewhere(
        "-- sample: x.\n-- ANSWERS done\n-- USES b a c\nreturn { 'done', a, b }\n",
        a="-- a: x.\nlocal a = 1\n",
        b="-- b: x.\n-- USES c a\nlocal b = c\n",
        c="-- c: x.\n-- KEYS bell\n-- USES a\nlocal c = k_bell\n",
    )
    assert [script.source.index(part) for part in ("k_bell =", "local a", "local c", "local b", "return")] == sorted(
        script.source.index(part) for part in ("k_bell =", "local a", "local c", "local b", "return")
    )
    assert script.source.count("local a") == 1


def test_arguments_go_in_the_headers_order_whatever_the_calls(cancel):
    assert cancel.argv(offer="o", code="c", tenant="t", id="i") == ["i", "t", "c", "o"]
    assert scripts.load("release").argv(held=["i", "t"], worker="w") == ["w", "i", "t"]
    assert scripts.load("release").argv(held=[], worker=b"w") == [b"w"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"id": "i", "tenant": "t"}, "takes"),
        ({"id": "i", "tenant": "t", "code": "c", "offer": "", "more": "x"}, "more"),
        ({"id": 7, "tenant": "t", "code": "c", "offer": ""}, "id takes text, not 7"),
        ({"id": None, "tenant": "t", "code": "c", "offer": ""}, "id takes text, not None"),
    ],
)
def test_a_call_against_the_header_is_refused_naming_the_argument(cancel, given, told):
    with pytest.raises(ScriptError, match=told):
        cancel.argv(**given)


@pytest.mark.parametrize("value", ["1", 1.0, True, None, 2**53 + 1, -(2**60)])
def test_an_int_is_an_int_that_lua_can_hold(value):
    with pytest.raises(ScriptError, match="quiet takes an int"):
        scripts.load("touch").argv(id="i", tenant="", quiet=value)


@pytest.mark.parametrize("value", ["text", b"bytes", 7])
def test_a_rest_is_a_sequence(value):
    with pytest.raises(ScriptError, match="held takes a sequence"):
        scripts.load("release").argv(worker="w", held=value)


@pytest.mark.parametrize("raw", [None, 7, b"done", [], [None], [b"undeclared"], ["done"]])
def test_an_answer_that_is_not_declared_is_a_fault(cancel, raw):
    with pytest.raises(ScriptError, match="declares"):
        cancel.answer(raw)


def test_an_answer_is_its_word_and_what_follows(cancel):
    assert cancel.answer([b"gone", 1, b"x"]) == ("gone", [1, b"x"])


def test_the_sha_is_the_sources(cancel, redis_client):
    assert redis_client.script_load(cancel.source) in {cancel.sha, cancel.sha.encode()}


@pytest.mark.parametrize("name", scripts.names())
def test_the_server_compiles_every_script(redis_client, name):
    assert redis_client.script_load(scripts.load(name).source)

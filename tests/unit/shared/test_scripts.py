"""Tests that every script matches its header, and that a call that does not match it is refused before it is sent."""

import re
from pathlib import Path

import pytest

from shared.audit.invariants import INVARIANTS
from shared.errors import ScriptError
from shared.store import scripts
from shared.store.keys import TABLE

LUA = Path(scripts.__file__).parents[1] / "lua"

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
def test_every_script_matches_its_header(name):
    script = scripts.load(name)
    assert script.header.name == name
    assert script.header.summary.endswith(".")
    assert script.header.answers
    assert script.header.keeps
    assert set(script.header.keeps) <= set(INVARIANTS)


@pytest.mark.parametrize("name", scripts.names())
def test_every_key_of_a_script_comes_from_the_key_table_and_is_not_written_in_its_body(name):
    """The loader writes a script's keys; a literal key in the body would define one a second time."""
    _, body = scripts.read(f"{name}.lua")
    code = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--"))
    assert not re.findall(r"'(?:penstock|rq):[^']*'", code)
    script = scripts.load(name)
    for key in script.header.keys:
        row = TABLE[key]
        with_suffix = f"local function k_{key}(part) return '{row.prefix}' .. part .. '{row.suffix}' end"
        assert (with_suffix if row.suffix else f"'{row.prefix}'") in script.source
        assert row.suffix or not re.search(rf"\bk_{key}\b", script.source)


#: Commands whose replies are as long as what is stored.
UNBOUNDED = r"unpack\(\w+\.p?call\('(?:HGETALL|HKEYS|HVALS|SMEMBERS|LRANGE|[HSZ]?SCAN|[XZ]\w*RANGE\w*)'"


@pytest.mark.parametrize(
    "path", sorted(str(path.relative_to(LUA)) for path in LUA.rglob("*.lua") if "unpack" in path.read_text())
)
def test_no_script_unpacks_a_reply_of_any_length(path):
    """Lua raises an error for more than 8,000 values, and what another program has stored can have more."""
    assert not re.findall(UNBOUNDED, re.sub(r"\s+", " ", (LUA / path).read_text()))


#: The first five may fail at maxmemory, the next eight write nothing, and `erase` itself frees memory.
MAY_FAIL_WITHOUT_MEMORY = {
    *("admit", "batch_create", "file_add", "passages_keep", "answers_keep"),
    *("snapshot", "overview", "quote", "passages_find", "answers_read", "answers_list", "list_jobs", "spent_here"),
    "erase",
}


@pytest.mark.parametrize("name", sorted(set(scripts.names()) - MAY_FAIL_WITHOUT_MEMORY))
def test_every_other_script_frees_memory_before_it_writes(name):
    # `touch` ignores the failure of its writes.
    write = "lib.pcall" if name == "touch" else "lib.call"
    assert f"{write}('HDEL', 'penstock:config', '')" in scripts.load(name).source


def test_a_header_is_read_into_its_parts():
    header = scripts.parse("sample", GOOD)
    assert header.summary == "shows a header."
    assert header.keys == ("config", "rq_job", "bell")
    assert header.args == (scripts.Arg("id", "text"), scripts.Arg("count", "int"), scripts.Arg("held", "rest"))
    assert header.answers == {"done", "gone"}
    assert header.keeps == (1, 10)
    assert header.uses == ("clock",)


@pytest.mark.parametrize(
    ("line", "instead", "expected"),
    [
        ("-- sample: shows", "-- other: shows", "first line"),
        ("-- KEYS config rq_job", "-- KEYS config rq_jobs", "rq_jobs"),
        ("--   count int · how many", "--   count float · how many", "count float"),
        ("--   count int · how many", "--   count int", "'count int'"),
    ],
)
def test_an_invalid_header_is_refused_with_a_quote_of_its_fault(line, instead, expected):
    with pytest.raises(ScriptError, match=expected):
        scripts.parse("sample", GOOD.replace(line, instead))


def test_a_file_without_a_header_is_refused():
    with pytest.raises(ScriptError, match="first line"):
        scripts.parse("sample", "return { 'done' }\n")


@pytest.fixture
def load_sample(tmp_path, monkeypatch):
    """Replaces shared/lua with an empty folder; the function writes `body` to sample.lua there and loads it."""
    (tmp_path / "lua" / "lib" / "base").mkdir(parents=True)
    (tmp_path / "lua" / "lib" / "base" / "guard.lua").write_text("-- guard: x.\nlocal function mend()\nend\n")
    monkeypatch.setattr(scripts, "files", lambda _: tmp_path)
    clear_caches()

    def load(body: str, **libs: str) -> scripts.Script:
        (tmp_path / "lua" / "sample.lua").write_text(body)
        for name, text in libs.items():
            (tmp_path / "lua" / "lib" / "base" / f"{name}.lua").write_text(text)
        return scripts.load("sample")

    yield load
    clear_caches()


def clear_caches() -> None:
    scripts.load.cache_clear()
    scripts.read.cache_clear()
    scripts._library_path.cache_clear()


def test_a_key_that_the_header_does_not_name_is_refused(load_sample):
    with pytest.raises(ScriptError, match="names the keys"):
        load_sample("-- sample: x.\n-- KEYS config\n-- ANSWERS done\nreturn { 'done', k_config, k_bell }\n")


def test_a_key_that_the_body_does_not_use_is_refused(load_sample):
    with pytest.raises(ScriptError, match="names the keys"):
        load_sample("-- sample: x.\n-- KEYS config bell\n-- ANSWERS done\nreturn { 'done', k_config }\n")


@pytest.mark.parametrize("answers", ["done", "done gone lost", ""])
def test_a_script_whose_body_and_header_name_different_answers_is_refused(load_sample, answers):
    with pytest.raises(ScriptError, match="body returns"):
        load_sample(f"-- sample: x.\n-- ANSWERS {answers}\nif x then\nreturn {{ 'gone' }}\nend\nreturn {{ 'done' }}\n")


def test_a_library_is_included_once_and_after_the_libraries_that_it_uses(load_sample):
    script = load_sample(
        "-- sample: x.\n-- ANSWERS done\n-- USES b a c\nreturn { 'done', a, b }\n",
        a="-- a: x.\nlocal a = 1\n",
        b="-- b: x.\n-- USES c a\nlocal b = c\n",
        c="-- c: x.\n-- KEYS bell\n-- USES a\nlocal c = k_bell\n",
    )
    places = [script.source.index(part) for part in ("\na = 1,", "\nc = ", "\nlib.b = lib.c", "return")]
    assert places == sorted(places)
    assert script.source.count("\na =") == 1


def test_a_library_that_no_folder_or_that_two_folders_have_is_refused(load_sample, tmp_path):
    body = "-- sample: x.\n-- ANSWERS done\n-- USES a\nreturn { 'done', a }\n"
    with pytest.raises(ScriptError, match="'a' must be in one folder of lib/, but it is in 0"):
        load_sample(body)
    other = tmp_path / "lua" / "lib" / "other"
    other.mkdir()
    (other / "a.lua").write_text("-- a: x.\nlocal a = 1\n")
    clear_caches()
    with pytest.raises(ScriptError, match="'a' must be in one folder of lib/, but it is in 2"):
        load_sample(body, a="-- a: x.\nlocal a = 1\n")


def test_arguments_are_sent_in_the_order_of_the_header_and_not_of_the_call(cancel):
    assert cancel.argv(offer="o", code="c", tenant="t", id="i") == ["i", "t", "c", "o"]
    assert scripts.load("release").argv(held=["i", "t"], counts=1, worker="w") == ["w", 1, "i", "t"]
    assert scripts.load("release").argv(held=[], worker=b"w", counts=0) == [b"w", 0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"id": "i", "tenant": "t"}, "takes"),
        ({"id": "i", "tenant": "t", "code": "c", "offer": "", "more": "x"}, "more"),
        ({"id": 7, "tenant": "t", "code": "c", "offer": ""}, "id takes text, not 7"),
        ({"id": None, "tenant": "t", "code": "c", "offer": ""}, "id takes text, not None"),
    ],
)
def test_a_call_that_does_not_match_the_header_is_refused_with_the_argument_s_name(cancel, given, expected):
    with pytest.raises(ScriptError, match=expected):
        cancel.argv(**given)


@pytest.mark.parametrize("value", ["1", 1.0, True, None, 2**53 + 1, -(2**60)])
def test_a_value_for_an_int_argument_that_is_not_an_integer_or_too_large_for_lua_is_refused(value):
    with pytest.raises(ScriptError, match="quiet takes an int"):
        scripts.load("touch").argv(id="i", tenant="", quiet=value)


@pytest.mark.parametrize("value", ["text", b"bytes", 7])
def test_a_value_for_a_rest_argument_that_is_not_a_sequence_is_refused(value):
    with pytest.raises(ScriptError, match="held takes a sequence"):
        scripts.load("release").argv(worker="w", counts=0, held=value)


@pytest.mark.parametrize("raw", [None, 7, b"done", [], [None], [b"undeclared"], ["done"]])
def test_an_answer_that_the_header_does_not_declare_is_an_error(cancel, raw):
    with pytest.raises(ScriptError, match="declares"):
        cancel.answer(raw)


def test_an_answer_is_split_into_its_name_and_its_values(cancel):
    assert cancel.answer([b"gone", 1, b"x"]) == ("gone", [1, b"x"])


def test_the_sha_is_that_of_the_source(cancel, redis_client):
    assert redis_client.script_load(cancel.source) in {cancel.sha, cancel.sha.encode()}


@pytest.mark.parametrize("name", scripts.names())
def test_the_server_compiles_every_script(redis_client, name):
    assert redis_client.script_load(scripts.load(name).source)

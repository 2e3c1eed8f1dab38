"""Tests of a cell's key prefix: what it may be, which keys of a command get it, and which replies lose it."""

import pytest
import redis

from shared.errors import ConfigError, ScriptError
from shared.settings.key_prefix import check_key_prefix
from shared.settings.settings import load
from shared.store import keys, scripts
from shared.store.clients.hash_slots import hash_tag, slot_of
from shared.store.clients.key_prefix import KeyPrefixer, prefix_of
from shared.store.connection import open_blocking_client, open_client

PREFIX = "{c7}:"


@pytest.fixture
def cell(redis_client: redis.Redis, store_url: str):
    """A client of the cell `{c7}:` in the session's store."""
    with open_client(store_url, name="penstock-test", prefix=PREFIX) as client:
        yield client


@pytest.mark.parametrize("prefix", ["", "{c7}:", "staging:", "eu.{west-1}:", "a:b:", "{a:b}:", f"{'x' * 63}:"])
def test_prefixes_that_end_with_a_colon_and_have_at_most_one_hash_tag_are_valid(prefix):
    check_key_prefix(prefix)


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ("c7", "must end with a colon"),
        ("{c7}", "must end with a colon"),
        (f"{'x' * 64}:", "has 65 characters and may have 64"),
        ("a*:", "may contain only letters"),
        ("[a]:", "may contain only letters"),
        ("a b:", "may contain only letters"),
        ("ü:", "may contain only letters"),
        ("a\n:", "may contain only letters"),
        ("'a':", "may contain only letters"),
        ("{c7:", "only one hash tag"),
        ("c7}:", "only one hash tag"),
        ("}c7{:", "only one hash tag"),
        ("{}:", "only one hash tag"),
        ("{a}{b}:", "only one hash tag"),
        ("{{a}}:", "only one hash tag"),
        ("penstock:", "contains penstock:"),
        ("a:rq:", "contains rq:"),
    ],
)
def test_any_other_prefix_is_refused_with_its_fault(prefix, why):
    with pytest.raises(ConfigError, match=why) as refused:
        load(environ={"PENSTOCK_KEY_PREFIX": prefix} if prefix.isprintable() else {}, dotenv=None, key_prefix=prefix)
    assert f"PENSTOCK_KEY_PREFIX={prefix!r}" in str(refused.value)


def test_rqs_own_setting_of_a_prefix_is_refused():
    with pytest.raises(ConfigError, match=r"RQ_KEY_PREFIX='\{c7\}:rq' is for RQ's own tools"):
        load(environ={"RQ_KEY_PREFIX": "{c7}:rq"}, dotenv=None)
    load(environ={"RQ_KEY_PREFIX": "rq"}, dotenv=None)


#: Commands of each form. The keys among their words are in capitals.
COMMANDS = """
get K | set K v ex 1 | hget K f | hmset K f v | zadd K nx 1 m | linsert K before a b | lpos K a | incrbyfloat K 1
del K K2 | unlink K | exists K K2 | mget K K2 K3 | touch K | watch K K2 | sinter K K2 | sunionstore K K2 K3
rename K K2 | copy K K2 replace | lmove K K2 left right | rpoplpush K K2 | zrangestore K K2 0 1
blpop K K2 0 | bzpopmin K 1 | mset K v K2 v2 | msetnx K v
object encoding K | memory usage K | xinfo stream K | xgroup create K g 0
eval return 2 K K2 a b | evalsha sha 1 K a | evalsha sha 0 a
zunionstore K 2 K2 K3 weights 1 2 | zinter 2 K K2 | sintercard 2 K K2 limit 1 | lmpop 2 K K2 left | blmpop 1 2 K K2 left
xread count 2 block 5 streams K K2 0 0 | xreadgroup group g c streams K 0 | xadd K maxlen 9 * f v
"""
FORMS = [line.split() for each in COMMANDS.strip().splitlines() for line in each.split("|")]


@pytest.mark.parametrize("words", FORMS, ids=" ".join)
def test_exactly_the_keys_of_a_command_get_the_prefix(words, redis_client):
    named = [word for word in words if word.startswith("K")]
    expected = [f"{PREFIX}{word}" if word.startswith("K") else word for word in words]
    packer = KeyPrefixer(PREFIX)
    command, *rest = expected
    assert list(packer.prefixed(words))[1:] == rest
    assert list(packer.prefixed([command.upper(), *words[1:]])) == [command.upper(), *rest]
    raw = [word.encode() for word in words]
    assert list(packer.prefixed(raw))[1:] == [word.encode() for word in rest]
    if named:
        assert redis_client.command_getkeys(*words) == named


def test_a_key_that_has_the_prefix_gets_no_second_one(cell, redis_client):
    cell.set("penstock:a", "1")
    assert redis_client.keys() == [b"{c7}:penstock:a"]
    assert cell.get("{c7}:penstock:a") == cell.get(b"penstock:a") == b"1"


def test_a_command_that_reaches_other_cells_is_not_sent(cell, redis_client):
    redis_client.set("penstock:a", "1")
    for command in ("FLUSHALL", "FLUSHDB", "RANDOMKEY", "SWAPDB", "SORT", "SUBSCRIBE", "NEW"):
        with pytest.raises(redis.DataError, match=f"{command} is not a command that PENSTOCK_KEY_PREFIX"):
            cell.execute_command(command, "penstock:a")
    assert redis_client.get("penstock:a") == b"1"
    assert cell.ping()


def test_replies_with_keys_name_them_without_the_prefix(cell, redis_client):
    cell.rpush("penstock:list", "1", "2")
    redis_client.set("penstock:theirs", "1")
    assert cell.keys("*") == [b"penstock:list"]
    assert list(cell.scan_iter()) == list(cell.scan_iter("penstock:*")) == [b"penstock:list"]
    assert list(cell.scan_iter("other*")) == []
    assert cell.blpop(["penstock:none", "penstock:list"], 1) == (b"penstock:list", b"1")
    assert cell.blpop("penstock:none", 0.01) is None
    pipe = cell.pipeline(transaction=True)
    pipe.keys("*")
    pipe.lrange("penstock:list", 0, -1)
    assert pipe.execute() == [[b"penstock:list"], [b"2"]]


def test_sets_of_keys_hold_whole_keys_so_that_rqs_own_tools_can_read_them(cell, redis_client):
    cell.sadd("rq:workers", "rq:worker:w1")
    cell.sadd("penstock:groups", "{c7}:x")
    assert redis_client.smembers("{c7}:rq:workers") == {b"{c7}:rq:worker:w1"}
    assert cell.smembers("rq:workers") == {b"rq:worker:w1"}
    assert cell.sismember("rq:workers", "rq:worker:w1")
    assert cell.srem("rq:workers", "rq:worker:w1") == 1
    assert cell.smembers("penstock:groups") == {b"{c7}:x"}


def test_clients_made_from_a_client_are_of_the_same_cell(cell):
    assert prefix_of(open_blocking_client(cell, block_s=1.0)) == PREFIX
    with cell.client() as single:
        single.set("penstock:a", "1")
        assert single.keys("*") == [b"penstock:a"]
    assert cell.transaction(lambda pipe: pipe.multi() or pipe.get("penstock:a"), "penstock:a") == [b"1"]
    sentinel = open_client("redis+sentinel://one:26379/main", name="any", prefix=PREFIX)
    assert prefix_of(sentinel) == prefix_of(open_blocking_client(sentinel, block_s=1.0)) == PREFIX


def test_a_client_without_a_prefix_packs_its_commands_as_before(redis_client, store_url):
    plain = open_client(store_url, name="any")
    assert "command_packer" not in plain.connection_pool.connection_kwargs
    assert prefix_of(plain) == prefix_of(redis.Redis()) == ""


@pytest.mark.parametrize("name", scripts.names())
def test_a_script_differs_between_cells_only_in_the_prefix_of_its_keys(name):
    script, in_cell = scripts.load(name), scripts.load(name).in_cell(PREFIX)
    assert script.in_cell("") is script
    assert script.named == ()
    assert in_cell.named == (keys.config(),)
    assert in_cell.source != script.source
    assert in_cell.source.replace(PREFIX, "") == script.source
    assert scripts.load(name).in_cell(PREFIX) is in_cell


def test_the_slots_are_those_of_the_servers():
    assert [slot_of(key) for key in ("123456789", "foo", "{user1000}.following")] == [12_739, 12_182, 3_443]
    assert [hash_tag(key) for key in ("a", "{c7}:a{b}", "a{}b", "{", "x{y}z")] == ["", "c7", "", "", "y"]


def test_all_keys_of_a_cell_with_a_hash_tag_are_in_one_slot():
    found = {slot_of(PREFIX + (key("x{y}") if key.part else key())) for key in keys.TABLE.values()}
    assert found == {slot_of(PREFIX)}


def test_a_script_that_would_need_two_slots_is_refused(monkeypatch):
    script = scripts.load("touch")
    monkeypatch.setattr(scripts, "slot_of", len)
    with pytest.raises(ScriptError, match=r"touch: a key lies outside the slot of PENSTOCK_KEY_PREFIX='\{other\}:'"):
        script.in_cell("{other}:")

"""Tests of the script `mend_record`, which makes room for the record of a tenant or a group."""

import pytest

from shared.store import keys, scripts
from tests.support.builders import contents
from tests.support.cell import KEY_PREFIX

MEND = scripts.load("mend_record")


@pytest.mark.parametrize("owner", ["blue", keys.group_owner("lab")])
def test_what_another_program_stored_in_place_of_a_record_is_kept_aside_counted_and_announced(store, owner):
    key = keys.tenant(owner)
    store.client.set(key, "no hash")
    assert MEND.call(store.client, owner=owner) == ("sound", [])
    assert not store.client.exists(key)
    assert store.client.get(keys.spoiled(KEY_PREFIX + key)) == b"no hash"
    assert store.client.ttl(keys.spoiled(KEY_PREFIX + key)) > 0
    assert store.snapshot(stats=True).stats["mended|type"] == 1
    assert store.client.lrange(keys.notices(), 0, -1) == [f"type {KEY_PREFIX}{key}".encode()]


@pytest.mark.parametrize("record", [{}, {"policy": "1", "policy_rpm": "5"}])
def test_a_sound_record_or_none_stays_as_it_is(store, record):
    if record:
        store.client.hset(keys.tenant("blue"), mapping=record)
    before = contents(store)
    assert MEND.call(store.client, owner="blue") == ("sound", [])
    assert contents(store) == before

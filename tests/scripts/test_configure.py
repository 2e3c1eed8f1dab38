"""Tests of the script `configure`: the first process writes the system-wide settings; a different value is refused."""

from dataclasses import replace

import pytest

from shared.errors import SettingsConflict
from shared.settings.settings import SYSTEM_WIDE
from shared.store import keys
from tests.support.builders import contents


def test_the_first_process_writes_every_system_wide_setting(store):
    held = store.client.hgetall(keys.config())
    assert {name.decode() for name in held} == {*SYSTEM_WIDE, "schema", "schema_oldest", "store_bytes"}
    assert (held[b"lease_ms"], held[b"max_inflight"]) == (b"15000", b"auto")


def test_the_same_settings_again_change_nothing(store, settings):
    before = contents(store)
    store.configure(settings)
    assert contents(store) == before


def test_a_different_value_raises_an_error_that_names_both_values_and_changes_nothing(store, settings):
    before = contents(store)
    with pytest.raises(SettingsConflict) as caught:
        store.configure(replace(settings, lease_ms=1_000, fairness="turns"))
    assert caught.value.differing == {"lease_ms": ("15000", "1000"), "fairness": ("tokens", "turns")}
    assert "--take-over" in str(caught.value)
    assert contents(store) == before


def test_taking_over_replaces_the_settings_and_keeps_the_other_fields(store, settings):
    store.client.hset(keys.config(), "draining", "1")
    store.configure(replace(settings, lease_ms=1_000), take_over=True)
    held = store.client.hgetall(keys.config())
    assert (held[b"lease_ms"], held[b"draining"]) == (b"1000", b"1")
    store.configure(replace(settings, lease_ms=1_000))


def test_a_setting_that_the_store_does_not_have_yet_is_added(store, settings):
    store.client.hdel(keys.config(), "generated_weight")
    store.configure(settings)
    assert store.client.hget(keys.config(), "generated_weight") == b"auto"


def test_configure_works_when_memory_is_full(store, settings, memory_is_full):
    with memory_is_full():
        store.configure(replace(settings, lease_ms=7_000), take_over=True)
    assert store.client.hget(keys.config(), "lease_ms") == b"7000"

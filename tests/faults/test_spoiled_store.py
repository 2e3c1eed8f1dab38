"""Tests that no value which another program spoils leaves a job without an end or stops a pool; see bench/spoil.py.

`make spoil` runs every case. These are a fixed sample, which has each kind of key and the values that did most harm.
"""

import pytest

from bench.spoil import Case, cases, judge
from shared.audit.key_owners import family_of
from shared.store.keys import TABLE

#: Cases that once stopped a pool or left a job without an end.
HARMFUL = [
    Case("penstock:config", "lease_ms", "abc"),
    Case("penstock:config", "max_inflight", "1.5"),
    Case("penstock:config", "hold_until_ms", "1152921504606846976"),
    Case("penstock:order:ann.m", "", "wrong type"),
    Case("penstock:kept:bob", "ended", "abc"),
    Case("penstock:kept:bob", "ended", "900000000000000"),
    Case("penstock:kept:bob", "next_s", "1152921504606846976"),
    Case("penstock:tenant:bob", "running", "abc"),
    Case("penstock:tenant:bob", "s|m", "inf"),
    Case("penstock:books:m", "waiting_mwt", "1152921504606846976"),
    Case("penstock:books:m", "v", "1e300"),
    Case("penstock:leases", "", "delete"),
    Case("penstock:deadlines", "", "delete"),
    Case("penstock:inflight", "", "wrong type"),
    Case("penstock:active:m", "ann", "inf"),
    Case("penstock:active:m", "odd name:x.y z", "0"),
    Case("penstock:active:m@team", "odd name:x.y z", "0"),
    Case("penstock:batch:m", "", "wrong type"),
    Case("penstock:batch:m", "dot", "inf"),
    Case("penstock:batch:m", "ann", "0"),
    Case("penstock:active:m", "dot", "-1"),
    Case("penstock:batch:m@team", "", "delete"),
    Case("penstock:batch:m@team", "odd name:x.y z", "inf"),
    Case("penstock:order:dot.m", "dot-m-0", "-1"),
    Case("penstock:tenant:dot", "bn|m", "abc"),
    Case("penstock:books:m", "batch_mwt", "1152921504606846976"),
    Case("penstock:books:m", "batch_weight_milli", "abc"),
    Case("rq:job:dot-m-0", "penstock_priority", "abc"),
    Case("rq:job:dot-m-0", "penstock_priority", "delete field"),
    Case("penstock:lists:bob", "", "wrong type"),
    Case("penstock:lists:@team", "", "wrong type"),
    Case("penstock:tenant:bob", "g|m", "abc"),
    Case("penstock:tenant:@team", "", "wrong type"),
    Case("penstock:tenant:@team", "n|m", "1e300"),
    Case("penstock:stats", "admitted", "abc"),
    Case("penstock:worker:wm", "", "wrong type"),
    Case("penstock:wake:m", "", "wrong type"),
    Case("penstock:reservations:m", "", "wrong type"),
    Case("penstock:room:m", "", "wrong type"),
    Case("penstock:room:m", "room_mwt", "abc"),
    Case("penstock:key_rates:abc", "rpm_ms", "1152921504606846976"),
    Case("rq:workers", "", "wrong type"),
    Case("penstock:groups", "", "wrong type"),
    Case("penstock:tenant:@crew", "", "wrong type"),
    Case("penstock:pools", "", "wrong type"),
    Case("penstock:routes", "", "wrong type"),
    Case("penstock:admin_actions", "", "wrong type"),
    Case("penstock:webhooks", "gil-m-0", "inf"),
    Case("penstock:webhook_due:gil", "gil-m-0", "inf"),
    Case("penstock:webhook_turns", "", "wrong type"),
    Case("rq:job:ann-m-1", "penstock_state", "abc"),
    Case("rq:job:bob-m-3", "penstock_deadline_ms", "1e300"),
]
#: One in this many of all cases is in the sample too.
EVERY = 1_200
#: Families of keys that are not spoiled, and why.
NOT_SPOILED = {
    "clock": "the scene moves time with it; production has no such key",
    "keys": "only doors read it; a key whose record is spoiled is not accepted until an operator creates another",
    "admin_keys": "only doors read it; as above",
    "crashes": "only readiness and doctor read it; tests/scripts/test_crashes.py spoils it",
    **dict.fromkeys(
        ("passages", "passage_ages", "passages_dropped", "passage_bytes"),
        "only the door's cache of passages reads it; tests/scripts/test_passages.py spoils it",
    ),
    **dict.fromkeys(
        ("answers", "answer_order", "answer_vectors", "answer_bytes"),
        "only the door's semantic cache reads it; tests/scripts/test_answers.py spoils it",
    ),
    **dict.fromkeys(("history", "history_busy"), "only the history reads it; tests/scripts/test_history.py spoils it"),
    "alerts": "only the duty of alerts reads it; tests/scripts/test_alerts.py spoils it",
    "cells": "only doors and commands read it; tests/scripts/test_stored_directory.py spoils it",
    "missed_changes": "only changes of accounts read it; tests/scripts/test_cell_accounts.py spoils it",
    "spending_exchange": "only the exchange of budgets reads it; tests/scripts/test_budgets_over_cells.py spoils it",
    "prefixes": "a pool with one worker has none; tests/scripts/test_prefixes.py spoils it",
    "secret": "only doors read it, and replace a value that is no secret",
}


@pytest.mark.parametrize("case", HARMFUL, ids=str)
def test_a_spoiled_value_heals_and_every_job_ends(redis_client, case):
    assert judge(redis_client, case) == []


@pytest.mark.parametrize(
    "case", [Case("penstock:order:ann.m", "", "wrong type"), Case("penstock:tenant:ann", "waiting", "abc")], ids=str
)
def test_a_value_that_is_spoiled_again_each_second_harms_no_other_tenant(redis_client, case):
    assert judge(redis_client, case, again=True) == []


def test_keys_of_every_family_are_spoiled(redis_client):
    spoiled = {family_of(case.key) for case in cases(redis_client)}
    assert {name for name, family in TABLE.items() if family not in spoiled} == NOT_SPOILED.keys()


def test_a_sample_of_all_keys_and_fields_heals(redis_client):
    unhealed = {str(case): found for case in cases(redis_client)[::EVERY] if (found := judge(redis_client, case))}
    assert unhealed == {}

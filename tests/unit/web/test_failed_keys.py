"""Tests how many failed keys an address may send, and that counting them takes bounded memory."""

import pytest

from shared.clock import ManualClock
from web.http.client_address import parse_trusted_proxies
from web.runtime.credentials import failed_keys
from web.runtime.credentials.failed_keys import FailedKeys

PER_MINUTE = 6


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def failures(clock: ManualClock) -> FailedKeys:
    return FailedKeys(PER_MINUTE, parse_trusted_proxies("10.0.0.1"), clock)


def use_up(failures: FailedKeys, address: str) -> None:
    assert [failures.record(address) for _ in range(PER_MINUTE)] == [0] * PER_MINUTE


def test_an_address_is_limited_after_a_minutes_worth_of_failures_and_waits_for_one_more(
    failures: FailedKeys, clock: ManualClock
) -> None:
    use_up(failures, "192.0.2.7")
    assert failures.record("192.0.2.7") == pytest.approx(10)
    clock.advance(4)
    # A failure over the limit does not make the address wait longer, so the time that was named before stays right.
    assert failures.record("192.0.2.7") == pytest.approx(6)
    clock.advance(6.001)
    assert failures.record("192.0.2.7") == 0
    assert failures.record("192.0.2.7") == pytest.approx(10, abs=0.01)
    clock.advance(3_600)
    use_up(failures, "192.0.2.7")


def test_the_limit_of_one_address_does_not_apply_to_another(failures: FailedKeys) -> None:
    use_up(failures, "192.0.2.7")
    assert failures.record("192.0.2.8") == 0
    use_up(failures, "2001:db8:7:1::1")
    assert failures.record("2001:db8:7:1::2") > 0
    assert failures.record("2001:db8:7:2::1") == 0


def test_a_trusted_proxy_is_not_limited(failures: FailedKeys) -> None:
    for _ in range(10):
        use_up(failures, "10.0.0.1")


def test_a_rejected_key_need_not_be_looked_up_again_within_a_second_by_a_limited_address(
    failures: FailedKeys, clock: ManualClock
) -> None:
    failures.record("192.0.2.7", "digest")
    assert not failures.was_just_rejected("192.0.2.7", "digest")
    for _ in range(PER_MINUTE):
        failures.record("192.0.2.7", "other")
    assert failures.was_just_rejected("192.0.2.7", "digest")
    assert not failures.was_just_rejected("192.0.2.7", "third")
    assert not failures.was_just_rejected("192.0.2.8", "digest")
    clock.advance(1)
    assert not failures.was_just_rejected("192.0.2.7", "digest")


def test_a_scanner_with_many_addresses_and_keys_takes_bounded_memory(
    failures: FailedKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_keys, "_MAX_ENTRIES", 100)
    for number in range(10_000):
        failures.record(f"2001:db8:{number:x}::1", f"digest {number}")
    assert len(failures._buckets) == 100
    assert len(failures._rejected) == 100

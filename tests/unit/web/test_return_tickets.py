"""Tests of return tickets: they are good for one tenant, one model and one reservation, and never raise an error."""

import pytest

from shared.clock import ManualClock
from shared.store import keys
from web.runtime.ticket_signer import ReturnTickets

ID, RETRY_MS = "0123456789abcdef", 1_800_000_000_000


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def tickets(redis_client, clock):
    return ReturnTickets(redis_client, clock)


def test_a_ticket_is_read_as_it_was_signed_by_every_door(tickets, redis_client, clock):
    ticket = tickets.sign("blue", "m", ID, RETRY_MS)
    assert ReturnTickets(redis_client, clock).read(ticket, "blue", "m") == (ID, RETRY_MS)


@pytest.mark.parametrize(("tenant", "model"), [("green", "m"), ("blue", "other"), ("blue\nm", "m")])
def test_a_ticket_of_another_tenant_or_model_counts_as_none(tickets, tenant, model):
    assert tickets.read(tickets.sign("blue", "m", ID, RETRY_MS), tenant, model) == ("", 0)


def test_a_ticket_with_a_changed_character_counts_as_no_ticket(tickets):
    ticket = tickets.sign("blue", "m", ID, RETRY_MS)
    changed = [ticket[:i] + ("1" if ticket[i] != "1" else "2") + ticket[i + 1 :] for i in range(len(ticket) - 1)]
    assert {tickets.read(text, "blue", "m") for text in changed} == {("", 0)}


@pytest.mark.parametrize(
    "ticket", ["", ".", "1.2.3", "x" * 1_000_000, "1." + "a" * 16 + "." + "é" * 43, "٣.a." + "A" * 43]
)
def test_a_text_that_is_no_ticket_counts_as_none(tickets, ticket):
    assert tickets.read(ticket, "blue", "m") == ("", 0)


def test_there_is_no_ticket_without_a_reservation(tickets):
    assert tickets.sign("blue", "m", ID, 0) is None


def test_a_new_secret_invalidates_all_tickets_within_five_seconds(tickets, redis_client, clock):
    ticket = tickets.sign("blue", "m", ID, RETRY_MS)
    redis_client.delete(keys.secret())
    clock.advance(5.1)
    assert tickets.read(ticket, "blue", "m") == ("", 0)


def test_while_the_store_does_not_answer_there_are_no_tickets(redis_client, clock):
    tickets = ReturnTickets(redis_client.__class__(host="127.0.0.1", port=1, retry=None), clock)
    assert tickets.sign("blue", "m", ID, RETRY_MS) is None
    assert tickets.read(f"{RETRY_MS}.{ID}.{'A' * 43}", "blue", "m") == ("", 0)


def test_a_secret_of_the_wrong_type_is_replaced(tickets, redis_client):
    redis_client.delete(keys.secret())
    redis_client.rpush(keys.secret(), "x")
    ticket = tickets.sign("blue", "m", ID, RETRY_MS)
    assert tickets.read(ticket, "blue", "m") == (ID, RETRY_MS)

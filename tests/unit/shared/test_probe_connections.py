"""Which connection of a listener for probes is replaced when there are too many."""

from shared.probe_connections import ProbeConnections


def held(*connections: str, in_all: int = 4, per_address: int = 3) -> ProbeConnections[str]:
    """Return a table with these connections, whose first letter is their address."""
    table: ProbeConnections[str] = ProbeConnections(in_all, per_address)
    for connection in connections:
        assert table.add(connection, connection[0]) is None
    return table


def test_a_new_connection_replaces_the_oldest_that_has_sent_no_request():
    table = held("a1", "a2", "b1", "b2")
    table.mark_request("a1")
    assert table.add("c1", "c") == "a2"
    assert table.add("c2", "c") == "b1"
    assert len(table) == 4


def test_an_address_replaces_its_own_connections():
    table = held("b1", "a1", "a2", "a3")
    assert [table.add(f"a{index}", "a") for index in range(4, 8)] == ["a1", "a2", "a3", "a4"]
    table.remove("a7")
    assert table.add("a8", "a") is None


def test_when_all_have_sent_a_request_the_oldest_is_replaced():
    table = held("a1", "a2", "b1", "b2")
    for connection in ("b2", "a1", "a2", "b1"):
        table.mark_request(connection)
    assert table.add("c1", "c") == "b2"


def test_what_has_ended_or_was_replaced_is_no_longer_counted():
    table = held("a1", "a2", "a3")
    assert table.add("a4", "a") == "a1"
    table.mark_request("a1")
    table.remove("a1")
    assert len(table) == 3
    for connection in ("a2", "a3", "a4"):
        table.remove(connection)
    assert len(table) == 0

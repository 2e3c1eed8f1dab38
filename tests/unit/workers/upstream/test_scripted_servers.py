"""Tests of the scripted servers themselves: what they leave open fails a later test, at its first collection."""

import gc
import socket
import warnings

import pytest

from tests.support.raw_upstream import RawUpstream
from tests.support.upstream_server import UpstreamServer


@pytest.mark.parametrize("kind", [RawUpstream, UpstreamServer])
def test_a_server_that_stops_while_clients_connect_leaves_no_socket_open(
    kind: type[RawUpstream | UpstreamServer],
) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(5):
            with kind() as server:
                clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
            for client in clients:
                client.close()
        gc.collect()
    # Other tests' objects may be collected here too. Only a server's sockets are of interest.
    assert [str(one.message) for one in seen if "127.0.0.1" in str(one.message)] == []

"""Connects a cell's client to the node of a Redis or Valkey Cluster that owns the cell's hash slot.

A cell of a cluster has a key prefix with a hash tag, so all its keys are in one slot, and the client is a plain one of
the slot's owner. The owner is found by CLUSTER SLOTS, and found anew after a reply MOVED and after the loss of a
connection. A command that was answered by MOVED had no effect and is sent once to the new owner. Nothing else is ever
repeated.
"""

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import redis
from redis.client import Pipeline
from redis.connection import Connection, SSLConnection
from redis.exceptions import MovedError, ResponseError, WatchError

from shared.store.clients.quick_client import QuickPool

Address = tuple[str, int]

#: How many nodes one search asks at most, and after how many seconds it asks no further one.
_MAX_ASKED, _MAX_SEARCH_S = 6, 1.5
#: How often a transaction that watches keys is begun again because they have moved.
_MAX_MOVES = 3
#: How long the result of a search is used before nodes are asked again, in seconds: while a failover lasts, each new
#: connection would ask otherwise.
_LEAST_AGE_S = 0.1


class SlotOwner:
    """Knows which node owns a slot. All connections of a process to one cell share it."""

    def __init__(self, seeds: Sequence[Address], slot: int, connection: type[Connection], **options: Any) -> None:
        """`options` are those of the connections that ask for the owner."""
        self.seeds, self.slot = tuple(seeds), slot
        #: The owner, or None if it must be found anew.
        self.address: Address | None = None
        self._connection_class, self._options = connection, options
        self._lock = threading.Lock()
        self._nodes: tuple[Address, ...] = ()
        self._doubted: Address | None = None
        self._asked_s = -_LEAST_AGE_S
        self._last: Address | None = None
        #: Why the node that was asked last has named no owner.
        self._fault: Exception | None = None

    def find(self) -> Address:
        """Return the owner's address. Raises redis.ConnectionError if no node knows an owner, or that node's error."""
        if (known := self.address) is not None:
            return known
        with self._lock:
            if self.address is None and time.monotonic() - self._asked_s >= _LEAST_AGE_S:
                self._last = self._ask()
                self._asked_s = time.monotonic()
            found = self.address = self.address or self._last
        # Another thread may doubt the address by now.
        if found is None:
            fault = self._fault
            if isinstance(fault, redis.AuthenticationError | redis.TimeoutError):
                raise type(fault)(*fault.args)
            raise redis.ConnectionError(f"no node of the cluster names an owner of slot {self.slot}: {fault}")
        return found

    def doubt(self, address: Address) -> None:
        """Have the owner found anew if it is still believed to be at `address`, where a connection has ended."""
        if self.address == address:
            self._doubted, self.address = address, None

    def moved_to(self, address: Address) -> None:
        self.address = self._last = address

    def _ask(self) -> Address | None:
        """Ask nodes in a random order, but the one in doubt last, until one knows the owner."""
        until_s = time.monotonic() + _MAX_SEARCH_S
        nodes = list(dict.fromkeys((*self._nodes, *self.seeds)))
        random.shuffle(nodes)
        nodes.sort(key=lambda node: node == self._doubted)
        for node in nodes[:_MAX_ASKED]:
            if time.monotonic() > until_s:
                break
            connection = self._connection_class(host=node[0], port=node[1], **self._options)
            try:
                connection.send_command("CLUSTER", "SLOTS")
                ranges = connection.read_response()
            except (redis.ConnectionError, redis.TimeoutError, ResponseError, OSError) as error:
                self._fault = error
                continue
            finally:
                connection.disconnect()
            served = [_nodes_of(each, node) for each in ranges if each[0] <= self.slot <= each[1]]
            self._nodes = tuple(dict.fromkeys(one for each in ranges for one in _nodes_of(each, node)))
            if served:
                return served[0][0]
            self._fault = None
        return None


def _nodes_of(slot_range: Sequence[Any], asked: Address) -> list[Address]:
    """Return the addresses of a range's nodes, its primary first. A node without a name is the one that was asked."""
    return [(bytes(name or b"").decode() or asked[0], int(port)) for name, port, *_ in slot_range[2:]]


class NodeConnection(Connection):
    """A connection to the present owner of a slot."""

    def __init__(self, *, owner: SlotOwner, **options: Any) -> None:
        self._owner = owner
        super().__init__(**options)  # type: ignore[no-untyped-call]  # has no types

    def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        """Connect to the owner, unless connected. Raises redis.ConnectionError and redis.TimeoutError."""
        if self.is_connected:
            return
        self.host, self.port = address = self._owner.find()
        try:
            super().connect_check_health(check_health, retry_socket_connect)
        except (redis.ConnectionError, redis.TimeoutError):
            self._owner.doubt(address)
            self.host, self.port = self._owner.find()
            if (self.host, self.port) == address:
                raise
            super().connect_check_health(check_health, retry_socket_connect)


class SSLNodeConnection(NodeConnection, SSLConnection):
    """The same with TLS."""


class NodePipeline(Pipeline):
    """A pipeline whose commands that were answered by MOVED are sent once to the new owner."""

    #: How often watched keys had moved.
    _moves = 0

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the commands. Raises redis.RedisError as that of redis-py does."""
        stack, watches = list(self.command_stack), self.watching
        # redis-py has a method of the same name.
        is_transaction = bool(vars(self)["transaction"]) or self.explicit_transaction
        try:
            replies = super().execute(raise_on_error and is_transaction)
        except MovedError as error:
            self._follow(error)
            if watches:
                raise self._watch_again(error) from None
            # A transaction with a command that was answered by MOVED was discarded.
            self.command_stack = stack
            return super().execute(raise_on_error)
        moved = [index for index, reply in enumerate(replies) if isinstance(reply, MovedError)]
        if moved:
            self._follow(replies[moved[0]])
            self.command_stack = [stack[index] for index in moved]
            for index, reply in zip(moved, super().execute(raise_on_error=False), strict=True):
                replies[index] = reply
        if raise_on_error and not is_transaction:
            self.raise_first_error(stack, replies)  # type: ignore[no-untyped-call]  # has no types
        return replies

    def immediate_execute_command(self, *words: Any, **options: Any) -> Any:
        """Send a command of a pipeline that watches keys. Raises redis.WatchError if they have moved."""
        try:
            return super().immediate_execute_command(*words, **options)  # type: ignore[no-untyped-call]  # has no types
        except MovedError as error:
            self._follow(error)
            self.reset()
            raise self._watch_again(error) from None

    def _watch_again(self, error: MovedError) -> Exception:
        """Return an error upon which the caller watches the keys again, or `error` if that has not helped before."""
        self._moves += 1
        return WatchError("the watched keys have moved to another node") if self._moves <= _MAX_MOVES else error

    def _follow(self, error: Exception) -> None:
        self.connection_pool.follow(error)  # type: ignore[attr-defined]  # a NodePool


class NodePool(QuickPool):
    """A pool of connections to the present owner of a slot."""

    pipeline_class = NodePipeline

    @property
    def owner(self) -> SlotOwner:
        owner: SlotOwner = self.connection_kwargs["owner"]
        return owner

    def follow(self, error: Exception) -> bool:
        """Return whether `error` names another owner, to which the next connection of the pool leads."""
        if not isinstance(error, MovedError):
            return False
        if error.host:
            self.owner.moved_to((error.host, error.port))
        else:
            self.owner.address = None
        return True

    def release(self, connection: Any) -> None:
        if not connection.is_connected:
            self.owner.doubt((connection.host, connection.port))
        super().release(connection)

    def _is_ready(self, connection: Any) -> bool:
        return (connection.host, connection.port) == self.owner.address and super()._is_ready(connection)

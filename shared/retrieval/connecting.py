"""Connections to PostgreSQL whose waits end in time, and that hold the event loop of a door neither then nor before."""

import math
import socket
import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import Buffer, PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow
from psycopg.types.string import StrDumperUnknown

from shared.retrieval import schema
from shared.retrieval.errors import DatabaseAway
from shared.retrieval.records import storable

#: How long a connection may take to be opened, in seconds.
CONNECT_S = 5
#: How long a change of the tables' format may take, in seconds: it may make an index of all chunks.
_CHANGE_S = 1_800
#: The longest message of the database that is repeated, in characters.
_REPEATED = 300
#: How often a wait looks whether the connection was closed meanwhile, in seconds.
_WAKE_S = 0.1
_R = TypeVar("_R")


class NoAnswer(psycopg.OperationalError):
    """The server has not answered by the deadline of the connection, which cannot be used any more."""


class _TextDumper(StrDumperUnknown):
    """Writes a text with each character replaced that PostgreSQL cannot store, wherever a client has put it."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(storable(obj))


class Connection(psycopg.Connection[TupleRow]):
    """A connection that waits for the server until `deadline_s` (of time.monotonic), and then raises NoAnswer."""

    deadline_s = math.inf
    #: The value of search_path for every transaction.
    search_path = ""

    def wait(self, gen: PQGen[_R], interval: float = _WAKE_S, timeout: float | None = None) -> _R:
        """Run a generator of psycopg to its end, but not beyond the deadline, and for `timeout` seconds at most.

        Every operation of a connection waits here. In a door, psycopg waits with functions that gevent has replaced.
        """
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            gen.close()
            raise NoAnswer("no answer by the deadline")
        if left_s == math.inf or (timeout is not None and timeout < left_s):
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, left_s)
        except psycopg.OperationalError as error:
            if time.monotonic() < self.deadline_s:
                raise
            raise NoAnswer("no answer by the deadline") from error


def open_connection(url: str, connect_s: int = CONNECT_S) -> Connection:
    """Connect, check that this version can use the database, and create its tables if it has none.

    The connection commits each statement. Raises DatabaseAway, whose reason contains no password.
    """
    try:
        # The URL may have a time of its own, which is not longer.
        parameters = _parameters(url)
        given_s = str(parameters.get("connect_timeout") or "")
        if not (given_s.isascii() and given_s.isdigit() and 0 < int(given_s[:6]) < connect_s):
            parameters["connect_timeout"] = connect_s
        connection = Connection.connect(
            **parameters,
            autocommit=True,
            # Partial indexes are found only by plans that know the collection's number, so none is prepared.
            prepare_threshold=None,
        )
        # The database may have another default. A transaction that waits for another one then misses what that writes.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    except (psycopg.Error, OSError, UnicodeError) as error:
        raise DatabaseAway(reason_of(error)) from None
    connection.adapters.register_dumper(str, _TextDumper)
    connection.deadline_s = time.monotonic() + 3 * connect_s

    def change_begins() -> None:
        connection.deadline_s = time.monotonic() + _CHANGE_S

    try:
        connection.search_path = schema.prepare(connection, change_begins)
    except BaseException as error:
        connection.close()
        if isinstance(error, psycopg.Error):
            raise DatabaseAway(reason_of(error)) from None
        raise
    connection.deadline_s = math.inf
    return connection


def is_read_only(connection: Connection) -> bool:
    """Return whether the server refuses to write: it is a standby, or its settings say so."""
    row = connection.execute("SELECT current_setting('transaction_read_only') = 'on'").fetchone()
    return bool(row and row[0])


def reason_of(error: Exception) -> str:
    """Return what an operator may read about an error of the database: nothing that contains values of tenants."""
    if isinstance(error, psycopg.Error) and error.sqlstate:
        primary = error.diag.message_primary or ""
        # Classes 08, 25, 28, 3D, 42, 53 and 57 name roles, tables and settings. Messages of others may quote values.
        known = error.sqlstate[:2] in {"08", "25", "28", "3D", "42", "53", "57"}
        return f"{type(error).__name__} ({error.sqlstate}){f': {primary}' if known and primary else ''}"[:_REPEATED]
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:_REPEATED]


def parse_url(url: str) -> dict[str, Any]:
    """Return the parameters of libpq in a URL. Raises ValueError, whose message repeats no part that may be secret."""
    try:
        parameters: dict[str, Any] = dict(conninfo_to_dict(url))
    except psycopg.Error as error:
        # libpq quotes what it does not understand, which may be a part of the password.
        why = str(error).partition(":")[0].partition('"')[0].strip()
        raise ValueError(
            f"is no URL of PostgreSQL ({why}); in a user name or password, each character that is no letter and no "
            "digit has to be written with its code, such as %2F for a slash"
        ) from None
    ports = _ports(parameters)
    if not all(port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536 for port in ports):
        raise ValueError(
            "has a port that is no number from 1 to 65535; in a user name or password, a slash is written as %2F, and "
            "a colon as %3A"
        )
    hosts = str(parameters.get("host") or "").split(",")
    if len(ports) not in (1, len(hosts)):
        raise ValueError(f"has {len(hosts)} hosts and {len(ports)} ports")
    return parameters


def _ports(parameters: dict[str, Any]) -> list[str]:
    return [port or "5432" for port in str(parameters.get("port") or "").split(",")]


def _parameters(url: str) -> dict[str, Any]:
    """Return the parameters of libpq for a URL, with the addresses of its hosts.

    libpq would look names up itself, and hold the event loop of a door meanwhile.
    """
    try:
        parameters = parse_url(url)
    except ValueError as error:
        raise DatabaseAway(f"its URL {error}") from None
    parameters.setdefault("application_name", "penstock")
    hosts = str(parameters.get("host") or "").split(",")
    if any(hosts) and not parameters.get("hostaddr") and not any(host.startswith(("/", "@")) for host in hosts):
        ports = _ports(parameters)
        ports = ports * len(hosts) if len(ports) == 1 else ports
        found = [
            (host, str(info[4][0]), port)
            for host, port in zip(hosts, ports, strict=True)
            for info in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        ]
        parameters["host"], parameters["hostaddr"], parameters["port"] = (
            ",".join(part) for part in zip(*found, strict=True)
        )
        # A server that has vanished is noticed although the connection is idle.
        for name, value in {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}.items():
            parameters.setdefault(name, value)
    return parameters

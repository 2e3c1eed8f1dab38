"""`penstock redis`: redis-cli on this store, or its manners through redis-py where there is no redis-cli.

Like redis-cli it writes typed replies (`(integer) 0`) on a terminal and bare values into a pipe.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs, unquote, urlsplit

import typer

from shared.cli import output
from shared.cli.reach import FAULT, StateDir, client_for, settings, url_of
from shared.errors import ConfigError

if TYPE_CHECKING:
    import redis

#: Replies that are texts for people; redis-cli never quotes them either.
_REPORTS = {("INFO",), ("LOLWUT",), ("CLIENT", "LIST"), ("CLIENT", "INFO"), ("MEMORY", "DOCTOR"), ("LATENCY", "DOCTOR")}
#: The protocol marks a status apart from a string; redis-py does not tell. These texts and commands are statuses.
_STATUSES = {b"OK", b"PONG", b"QUEUED"}
_STATUS_COMMANDS = {"TYPE", "BGSAVE", "BGREWRITEAOF"}
#: These answer until the connection is closed.
_ENDLESS = {"MONITOR", "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"}


def run_redis(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND …]", help="A Redis command; none: read them from stdin.")
    ] = None,
    *,
    state_dir: StateDir = None,
) -> None:
    """Run a Redis command on this store, such as `penstock redis ZCARD penstock:inflight`."""
    words = command or []
    program = shutil.which("redis-cli") or shutil.which("valkey-cli")
    found = settings(state_dir)
    url = url_of(found)
    if program and _redis_cli_can(url):
        where, secret = _for_redis_cli(url)
        os.execve(program, [program, *where, *words], os.environ | secret)  # noqa: S606 - no shell is meant
    client = client_for(found)
    went_well = [_run(client, line) for line in ([words] if words else _lines())]
    if not all(went_well):
        raise typer.Exit(FAULT)


def _redis_cli_can(url: str) -> bool:
    """Sentinels it does not ask, and certificates it takes by options of its own."""
    parts = urlsplit(url)
    return parts.scheme in {"redis", "unix"} or (parts.scheme == "rediss" and not parts.query)


def _for_redis_cli(url: str) -> tuple[list[str], dict[str, str]]:
    """Its options for this URL; the password goes through the environment, where `ps` does not see it."""
    parts = urlsplit(url)
    secret = {"REDISCLI_AUTH": unquote(parts.password)} if parts.password else {}
    where = ["--no-auth-warning"] if parts.password else []
    where += ["--user", unquote(parts.username)] if parts.username else []
    database = parse_qs(parts.query).get("db", ["" if parts.scheme == "unix" else parts.path.strip("/")])[0]
    where += ["-n", database] if database else []
    if parts.scheme == "unix":
        return [*where, "-s", unquote(parts.path)], secret
    if parts.scheme == "rediss":
        where.append("--tls")
    return [*where, "-h", parts.hostname or "127.0.0.1", "-p", str(parts.port or 6379)], secret


def _lines() -> Iterator[list[str]]:
    """Commands from stdin, a line each, quoted as in a shell."""
    # Values need not be text: what is none goes to the store as it came.
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("penstock> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line or line.strip().lower() in {"exit", "quit"}:
            return
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise ConfigError(f"command {line.strip()!r} cannot be read: {error}") from None
        if words:
            yield words


def _run(client: "redis.Redis", words: list[str]) -> bool:
    """Send one command and write its reply, or its replies until Ctrl-C; whether it was no error."""
    import redis as library

    from shared.store.redis_errors import store_faults

    if not words[0].strip():
        raise ConfigError(f"command {words[0]!r} is empty")
    terminal = sys.stdout.isatty()
    with store_faults(client):
        # Below the client's own methods: those would reshape the reply by the command's name.
        connection = client.connection_pool.get_connection()
        try:
            connection.send_command(*(word.encode(errors="surrogateescape") for word in words))
            while True:
                try:
                    # No limit: BLPOP and the like wait as long as they were told to.
                    reply = connection.read_response(disable_decoding=True, timeout=None)
                except library.ResponseError as error:
                    reply = error
                if terminal:
                    for line in typed(reply, words):
                        output.data(line)
                else:
                    sys.stdout.buffer.write(bare(reply) + b"\n")
                    sys.stdout.buffer.flush()
                if words[0].upper() not in _ENDLESS or isinstance(reply, library.ResponseError):
                    return not isinstance(reply, library.ResponseError)
        finally:
            connection.disconnect()
            client.connection_pool.release(connection)


def typed(reply: Any, words: list[str], indent: str = "") -> Iterator[str]:
    """The reply as redis-cli writes it on a terminal, line by line; the first line comes without `indent`."""
    upper = tuple(word.upper() for word in words[:2])
    if isinstance(reply, Exception):
        yield f"(error) {_error(reply)}"
    elif reply is None:
        yield "(nil)"
    elif isinstance(reply, int):
        yield f"(integer) {reply}"
    elif isinstance(reply, bytes):
        if upper[:1] in _REPORTS or upper in _REPORTS:
            yield from reply.decode(errors="replace").splitlines()
        elif not indent and (reply in _STATUSES or upper[0] in _STATUS_COMMANDS):
            yield reply.decode(errors="replace")
        else:
            yield _quoted(reply)
    elif not reply:
        yield "(empty array)"
    else:
        width = len(str(len(reply)))
        for number, item in enumerate(reply, 1):
            head = f"{number:>{width}}) "
            lines = typed(item, words, indent + " " * len(head))
            yield ("" if number == 1 else indent) + head + next(lines)
            yield from lines


def bare(reply: Any) -> bytes:
    """The reply as redis-cli writes it into a pipe: values, a line each, nested ones flat."""
    if isinstance(reply, list):
        return b"\n".join(bare(item) for item in reply)
    if isinstance(reply, bytes):
        return reply
    if isinstance(reply, Exception):
        return _error(reply).encode()
    return b"" if reply is None else str(reply).encode()


def _error(reply: Exception) -> str:
    """The server's own words: redis-py takes the code off where it knows it."""
    code = getattr(reply, "status_code", None)
    return f"{code} {reply}" if code else str(reply)


def _quoted(text: bytes) -> str:
    """A string as redis-cli quotes it: what is no printable ASCII is escaped."""
    escapes = {0x22: '\\"', 0x5C: "\\\\", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x07: "\\a", 0x08: "\\b"}
    return (
        '"'
        + "".join(escapes.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}") for byte in text)
        + '"'
    )

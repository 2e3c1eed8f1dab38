"""`penstock redis`: run redis-cli or valkey-cli on this store.

If neither program is installed, the program cannot connect to the store's URL, or the keys have a prefix, the commands
are sent with redis-py, and the values of the replies are written. A key in a command gets the prefix unless it has it,
and keys in replies have it.
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
from shared.cli.reach import FAULT, StateDir, client_for
from shared.cli.reached_cells import CellName, settings_of_named_cell
from shared.errors import ConfigError
from shared.settings.settings import load
from shared.settings.store_url import normal_store_url

if TYPE_CHECKING:
    import redis

#: These commands send replies until the connection is closed.
_STREAMING_COMMANDS = {"MONITOR", "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"}


def run_redis(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND …]", help="A Redis command. Without one, commands are read from stdin."),
    ] = None,
    *,
    cell: CellName = None,
    state_dir: StateDir = None,
) -> None:
    """Run a Redis command on this store, for example `penstock redis ZCARD penstock:inflight`.

    With a directory of cells, `--cell` chooses one; without it, the store in force answers.
    """
    words = command or []
    if words:
        _check(words)
    program = shutil.which("redis-cli") or shutil.which("valkey-cli")
    settings = load(state_dir=state_dir)
    if cell is not None:
        settings = settings_of_named_cell(settings, cell)
    url = settings.store_url
    # redis-cli knows no prefix.
    if program and not settings.store_prefix and _redis_cli_supports(url):
        # redis-cli waits without an end for a store that does not answer, so this raises StoreUnavailable first.
        client_for(settings)
        options, password = redis_cli_options(url)
        os.execve(program, [program, *options, *words], os.environ | password)  # noqa: S606 - no shell is wanted
    client = client_for(settings)
    succeeded = [_run(client, command_words) for command_words in ([words] if words else _read_commands())]
    if not all(succeeded):
        raise typer.Exit(FAULT)


def _redis_cli_supports(url: str) -> bool:
    """Return whether redis-cli can connect to this URL.

    redis-cli cannot find a primary through Sentinel. It also takes TLS certificates as options, whereas this URL has
    them as parameters.
    """
    parts = urlsplit(normal_store_url(url))
    return parts.scheme in {"redis", "unix"} or (parts.scheme == "rediss" and not parts.query)


def redis_cli_options(url: str) -> tuple[list[str], dict[str, str]]:
    """Return redis-cli's options for this URL, and the environment variable that passes the password.

    The password is not passed as an option, because `ps` shows the options of a process to every user.
    """
    parts = urlsplit(normal_store_url(url))
    password = {"REDISCLI_AUTH": unquote(parts.password)} if parts.password else {}
    options = ["--no-auth-warning"] if parts.password else []
    options += ["--user", unquote(parts.username)] if parts.username else []
    database = parse_qs(parts.query).get("db", ["" if parts.scheme == "unix" else parts.path.strip("/")])[0]
    options += ["-n", database] if database else []
    if parts.scheme == "unix":
        return [*options, "-s", unquote(parts.path)], password
    if parts.scheme == "rediss":
        options.append("--tls")
    return [*options, "-h", parts.hostname or "127.0.0.1", "-p", str(parts.port or 6379)], password


def _read_commands() -> Iterator[list[str]]:
    """Read one command from each line of stdin and yield its words, which may be quoted as in a shell."""
    # Values may be binary, so bytes that are not valid UTF-8 must reach the store unchanged.
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
            raise ConfigError(f"command {line.strip()!r} cannot be split into words: {error}") from None
        if words:
            yield words


def _check(words: list[str]) -> None:
    """Raise ConfigError for a command without a name, which redis-cli would send to the store."""
    if not words[0].strip():
        raise ConfigError(f"command {words[0]!r} is empty")


def _run(client: "redis.Redis", words: list[str]) -> bool:
    """Send one command and write its reply. Return False if the reply is an error, else True.

    A command that streams replies, such as MONITOR, runs until Ctrl-C, and each reply is written when it arrives.
    """
    import redis as library

    from shared.store.redis_errors import store_faults

    _check(words)
    sent = [word.encode(errors="surrogateescape") for word in words]
    with store_faults(client):
        # Use a raw connection, because the client's methods convert replies depending on the command.
        connection = client.connection_pool.get_connection()
        try:
            try:
                connection.send_command(*sent)
            except library.DataError as error:
                raise ConfigError(f"command {words[0]!r} was not sent: {error}") from None
            while True:
                try:
                    # No timeout: blocking commands such as BLPOP have a timeout of their own.
                    reply = connection.read_response(disable_decoding=True, timeout=None)
                except library.ResponseError as error:
                    reply = error
                if sys.stdout.isatty():
                    output.write_data(format_bare(reply).decode(errors="replace").replace("\r\n", "\n"))
                else:
                    output.write_bytes(format_bare(reply) + b"\n")
                if words[0].upper() not in _STREAMING_COMMANDS or isinstance(reply, library.ResponseError):
                    return not isinstance(reply, library.ResponseError)
        finally:
            connection.disconnect()
            client.connection_pool.release(connection)


def format_bare(reply: Any) -> bytes:
    """Return a reply as redis-cli writes it into a pipe: one value a line, with nested lists flattened."""
    if isinstance(reply, list):
        return b"\n".join(format_bare(item) for item in reply)
    if isinstance(reply, bytes):
        return reply
    if isinstance(reply, Exception):
        return _error_text(reply).encode()
    return b"" if reply is None else str(reply).encode()


def _error_text(reply: Exception) -> str:
    """Return the server's error text, complete with the error code, which redis-py removes if it knows the code."""
    code = getattr(reply, "status_code", None)
    return f"{code} {reply}" if code else str(reply)

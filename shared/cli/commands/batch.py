"""`penstock batch`: run the requests in a file as a batch, follow one that runs, or cancel it."""

import sys
from codecs import BOM_UTF8
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import FAULT, YIELD, ActingTenant, Json, batch_client, end_with
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.cli.batch_client import BatchClient
    from shared.cli.progress import BatchProgress

app = typer.Typer(no_args_is_help=True, help="Run the requests in a file as a batch.")

#: The longest first line that is read to find the endpoint, in bytes.
_LONGEST_LINE = 16 * 2**20
#: The most invalid lines that are printed.
_MAX_TOLD = 20
#: The statuses with which the door refuses a file or a batch for want of room.
_NO_ROOM = {429, 503}


class OnInterrupt(StrEnum):
    """The effect of Ctrl-C on a running batch."""

    ASK = "ask"
    CANCEL = "cancel"
    LEAVE = "leave"


Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Where the answers go. Default: the input's name with .out.jsonl."),
]
Errors = Annotated[
    Path | None,
    typer.Option("--errors", metavar="FILE", help="Where failed lines go. Default: with .errors.jsonl."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files with the results.")]
Interrupt = Annotated[
    OnInterrupt,
    typer.Option(
        "--on-interrupt",
        help="What Ctrl-C does to the batch. `ask` asks on a terminal, and leaves the batch running without one.",
    ),
]
Delete = Annotated[bool, typer.Option("--delete", help="Delete the batch's files at the door when they are here.")]


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A file with one request a line, as JSON.")],
    *,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Such as /v1/chat/completions. Default: the `url` of the first line."),
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="TIME", help="How long the batch may take, such as 30m or 7d.")
    ] = "24h",
    out: Out = None,
    errors: Errors = None,
    force: Force = False,
    on_interrupt: Interrupt = OnInterrupt.ASK,
    delete: Delete = False,
    detach: Annotated[bool, typer.Option("--detach", help="Print the batch's id and exit, while it runs.")] = False,
    tenant: ActingTenant = None,
    json: Json = False,
) -> None:
    """Upload a file, run its lines as a batch, and write the answers and the errors to two files.

    Exit with 0 if every line succeeded, with 1 otherwise, and with 75 if the door has no room for the batch.
    """
    endpoint = endpoint or _endpoint_in(file)
    places = _places(file.with_suffix(""), out, errors, force=force or detach)
    from shared.cli.progress import BatchProgress

    client = batch_client(tenant)
    with BatchProgress() as progress:
        batch = _begin(client, file, endpoint, window, progress)
        if detach:
            progress.hide()
            _tell_begun(batch["id"])
            output.write_json(batch) if json else output.write_data(batch["id"])
            return
        batch = _follow(client, batch["id"], on_interrupt, progress, is_new=True)
    _finish(client, batch, places, delete=delete, json=json)


@app.command()
def follow(
    batch_id: Annotated[str, typer.Argument(help="The batch's id.")],
    *,
    out: Out = None,
    errors: Errors = None,
    force: Force = False,
    on_interrupt: Interrupt = OnInterrupt.ASK,
    delete: Delete = False,
    tenant: ActingTenant = None,
    json: Json = False,
) -> None:
    """Wait for the end of a batch, and write its answers and errors to two files. The exit codes are those of `run`."""
    places = _places(Path(Path(batch_id).name or "batch"), out, errors, force=force)
    from shared.cli.progress import BatchProgress

    client = batch_client(tenant)
    with BatchProgress() as progress:
        batch = _follow(client, batch_id, on_interrupt, progress)
    _finish(client, batch, places, delete=delete, json=json)


@app.command()
def cancel(
    batch_id: Annotated[str, typer.Argument(help="The batch's id.")], *, tenant: ActingTenant = None, json: Json = False
) -> None:
    """Cancel a batch. `follow` gets the answers that it has."""
    batch = batch_client(tenant).cancel(batch_id)
    output.write_json(batch) if json else output.write_note(f"batch {batch_id} is {batch['status']}")


def _endpoint_in(file: Path) -> str:
    """Return the `url` of the first line that is not blank. Raises ConfigError if all lines are blank."""
    from shared.cli.sse import parse_json_object

    try:
        with file.open("rb") as lines:
            while (line := lines.readline(_LONGEST_LINE)) and not line.strip():
                pass
    except OSError as error:
        raise ConfigError(f"FILE={str(file)!r} cannot be read: {error.strerror}") from None
    url = parse_json_object(line.removeprefix(BOM_UTF8)).get("url")
    if not isinstance(url, str):
        message = f"the first line of FILE={str(file)!r} has no field `url`; name the endpoint with --endpoint"
        raise ConfigError(message)
    return url


def _places(base: Path, out: Path | None, errors: Path | None, *, force: bool) -> tuple[Path, Path]:
    """Return where the answers and the errors go. Raises ConfigError if something is there that may not be replaced."""
    places = out or base.with_name(f"{base.name}.out.jsonl"), errors or base.with_name(f"{base.name}.errors.jsonl")
    if places[0] == places[1]:
        raise ConfigError(f"--out and --errors are both {str(places[0])!r}")
    for name, place in zip(("--out", "--errors"), places, strict=True):
        if place.exists() and not force:
            raise ConfigError(f"{name}={str(place)!r} exists; name another file, or replace it with --force")
        if not place.parent.is_dir():
            raise ConfigError(f"{name}={str(place)!r} is in a folder that does not exist")
    return places


def _begin(client: "BatchClient", file: Path, endpoint: str, window: str, progress: "BatchProgress") -> dict[str, Any]:
    """Upload the file and create the batch. Raises Exit if there is no room for it."""
    from shared.cli.door_client import DoorError

    file_id = ""
    try:
        file_id = client.upload(file, progress.show_upload)
        return client.create(file_id, endpoint=endpoint, window=window)
    except OSError as error:
        raise ConfigError(f"FILE={str(file)!r} cannot be read: {error.strerror}") from None
    except DoorError as error:
        progress.hide()
        if file_id and error.status:
            # The door has answered that there is no batch, so nothing reads the file.
            client.delete_file(file_id)
        if error.status not in _NO_ROOM:
            raise
        end_with(f"penstock: {error}", YIELD)


def _tell_begun(batch_id: str) -> None:
    output.write_note(f"batch {batch_id} runs until it ends, also without this command")


def _follow(
    client: "BatchClient", batch_id: str, on_interrupt: OnInterrupt, progress: "BatchProgress", *, is_new: bool = False
) -> dict[str, Any]:
    """Return the batch when it has ended. Raises KeyboardInterrupt if the user leaves it running."""
    batch: dict[str, Any] = {}
    is_canceled = False
    while True:
        try:
            # Inside the `try`, because a user may type Ctrl-C as soon as this note is there.
            if is_new:
                _tell_begun(batch_id)
                is_new = False
            for current in client.follow(batch_id):
                batch = current
                progress.show_batch(batch)
        except KeyboardInterrupt:
            progress.hide()
            if is_canceled or not _wants_cancel(batch_id, on_interrupt):
                output.write_note(f"batch {batch_id} continues; its results: penstock batch follow {batch_id}")
                raise
            client.cancel(batch_id)
            is_canceled = True
            output.write_note(f"canceled batch {batch_id}; waiting for the answers that it has")
            progress.show_again()
        else:
            return batch


def _wants_cancel(batch_id: str, on_interrupt: OnInterrupt) -> bool:
    """Return whether to cancel the batch after Ctrl-C. A second Ctrl-C leaves it running."""
    if on_interrupt is not OnInterrupt.ASK or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return on_interrupt is OnInterrupt.CANCEL
    output.write_note(f"batch {batch_id} is running. Type c and Enter to cancel it, or Enter to leave it running:")
    try:
        return sys.stdin.readline().strip().lower() in {"c", "cancel"}
    except KeyboardInterrupt:
        return False


def _finish(
    client: "BatchClient", batch: dict[str, Any], places: tuple[Path, Path], *, delete: bool, json: bool
) -> None:
    """Write the files, and how the batch ended. Exit with FAULT unless every line succeeded."""
    files = (batch.get("output_file_id"), batch.get("error_file_id"))
    try:
        for file_id, place in zip(files, places, strict=True):
            if file_id:
                client.download(file_id, place)
    except OSError as error:
        raise ConfigError(f"the results of batch {batch['id']} cannot be written: {error}") from None
    if delete:
        for file_id in (*files, batch.get("input_file_id")):
            if file_id:
                client.delete_file(file_id)
    if json:
        output.write_json(batch)
    _tell(batch, files, places)
    if batch["status"] != "completed" or files[1]:
        raise typer.Exit(FAULT)


def _tell(batch: dict[str, Any], files: tuple[str | None, str | None], places: tuple[Path, Path]) -> None:
    counts = batch.get("request_counts") or {}
    done, total = counts.get("completed") or 0, counts.get("total") or 0
    output.write_note(f"batch {batch['id']} {batch['status']}: {done} of {total} lines succeeded")
    for what, file_id, place in zip(("answers", "errors"), files, places, strict=True):
        if file_id:
            output.write_note(f"{what}: {place}")
    problems = (batch.get("errors") or {}).get("data") or []
    for problem in problems[:_MAX_TOLD]:
        where = f"line {problem['line']}: " if problem.get("line") else ""
        output.write_note(f"{where}{problem.get('message')}")

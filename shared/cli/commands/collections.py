"""`penstock collections`: create, list and remove collections, load files into them, and search them."""

import json as json_module
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import FAULT, YIELD, ActingTenant, Json, collection_client
from shared.durations import format_duration, format_timestamp, parse_duration_ms
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.cli.collection_client import CollectionClient
    from shared.cli.door_client import DoorError

app = typer.Typer(no_args_is_help=True, help="Keep collections of documents, and find passages in them.")

#: The types of the files that are loaded from a folder, by the ends of their names.
TYPES = {
    ".txt": "text/plain",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".htm": "text/html",
    ".html": "text/html",
    ".pdf": "application/pdf",
    ".json": "application/json",
}
#: The statuses with which the door says that it may take the document later.
_LATER = frozenset({429, 503, 504})
#: The longest id of a document, in characters.
_MAX_ID_CHARS = 256


class Mode(StrEnum):
    """How passages are found."""

    HYBRID = "hybrid"
    VECTOR = "vector"
    WORDS = "words"


Name = Annotated[str, typer.Argument(metavar="COLLECTION", help="1 to 64 letters, digits, `_` and `-`.")]


@app.command()
def add(
    name: Name,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The embedding model; `none`: words alone are searched. Default: the door's."
        ),
    ] = None,
    language: Annotated[str, typer.Option(metavar="NAME", help="Decides the stems of words.")] = "english",
    chunk_tokens: Annotated[int, typer.Option(min=16, max=4_096, help="The most tokens of a chunk.")] = 200,
    overlap_tokens: Annotated[
        int, typer.Option(min=0, max=1_024, help="About as many tokens are in the next chunk too.")
    ] = 40,
    tenant: ActingTenant = None,
    json: Json = False,
) -> None:
    """Create a collection."""
    fields: dict[str, Any] = {
        "name": name,
        "language": language,
        "chunk_tokens": chunk_tokens,
        "overlap_tokens": overlap_tokens,
    }
    if model is not None:
        fields["model"] = None if model == "none" else model
    created = collection_client(tenant).create(fields)
    if json:
        output.write_json(created)
        return
    how = f"with the vectors of {created['model']}" if created.get("model") else "by words alone"
    output.write_note(f"collection {name} is searched {how}")


@app.command("ls")
def list_all(
    name: Annotated[
        str | None, typer.Argument(metavar="COLLECTION", help="List its documents instead of all collections.")
    ] = None,
    *,
    tenant: ActingTenant = None,
    json: Json = False,
) -> None:
    """List the collections, or the documents of one."""
    client = collection_client(tenant)
    if name is None:
        found, columns = client.collections(), _COLLECTION_COLUMNS
    else:
        found, columns = list(client.documents(name)), _DOCUMENT_COLUMNS
    rows = ((*(each.get(key) for key in columns.values()), _time(each["loaded_at"])) for each in found)
    output.write_json(found) if json else output.write_table((*columns, "loaded"), rows)


#: The columns of the two lists but the last one, with the fields that they show.
_COLLECTION_COLUMNS = {
    "collection": "name",
    "model": "model",
    "documents": "documents",
    "chunks": "chunks",
    "bytes": "text_bytes",
    "title": "title",
}
_DOCUMENT_COLUMNS = {"document": "id", "chunks": "chunks", "bytes": "text_bytes"}


@app.command()
def rm(
    name: Name,
    *,
    document: Annotated[
        str | None, typer.Option(metavar="ID", help="Remove only this document of the collection.")
    ] = None,
    tenant: ActingTenant = None,
) -> None:
    """Remove a collection with its documents, or one document."""
    client = collection_client(tenant)
    if document is None:
        client.delete(name)
        output.write_note(f"removed collection {name}")
    else:
        client.delete_document(name, document)
        output.write_note(f"removed document {document} of collection {name}")


@app.command()
def load(
    name: Name,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Text, Markdown, HTML, PDF or JSON; or folders of these.")
    ],
    *,
    document: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="The document's id, for one file. Default: the file's path."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="NAME=VALUE", help="For all files; a VALUE that is JSON is used as such."),
    ] = None,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to try each document while there is no room for it.")
    ] = "10m",
    tenant: ActingTenant = None,
    json: Json = False,
) -> None:
    """Load files as documents, and replace those with the same ids. A document that is unchanged costs nothing.

    Exit with 1 if a file could not be loaded, and with 75 if that was for want of room or time alone.
    """
    from shared.cli.door_client import DoorError

    paths, fields = list(_expanded(files)), _metadata(metadata or [])
    if document is not None:
        _check_id(document, paths)
    wait_s = parse_duration_ms("--wait", wait) / 1000
    client, faults, loaded = collection_client(tenant), [], []
    for path in paths:
        try:
            found = _load(client, name, path, document or _id_of(path), fields, wait_s)
        except DoorError as error:
            if (
                not error.status
                or error.status in {401, 403}
                or error.code in {"collection_not_found", "collections_off"}
            ):
                raise
            faults.append(error)
            output.write_note(f"penstock: {path}: {error}")
        else:
            loaded.append(found)
            if not json:
                what = "unchanged" if found["unchanged"] else f"{found['chunks']} chunks"
                output.write_data(f"{found['id']}: {what}")
    if json:
        output.write_json(loaded)
    if faults:
        raise typer.Exit(YIELD if all(fault.status in _LATER for fault in faults) else FAULT)


@app.command()
def search(
    name: Name,
    query: Annotated[str, typer.Argument(help="A question, or some words.")],
    *,
    k: Annotated[int, typer.Option("-k", min=1, max=50, help="The most passages.")] = 6,
    filter_text: Annotated[
        str | None,
        typer.Option("--filter", metavar="JSON", help='Such as {"type": "eq", "key": "team", "value": "blue"}.'),
    ] = None,
    mode: Annotated[Mode, typer.Option(help="By vectors, by words, or by both.")] = Mode.HYBRID,
    budget: Annotated[str, typer.Option(metavar="TIME", help="When to stop, with what was found by then.")] = "5s",
    tenant: ActingTenant = None,
    json: Json = False,
) -> None:
    """Search a collection, and print the passages that answer the query best."""
    fields: dict[str, Any] = {"query": query, "k": k, "mode": mode.value}
    fields["budget_ms"] = parse_duration_ms("--budget", budget)
    if filter_text is not None:
        fields["filter"] = _json_object("--filter", filter_text)
    found = collection_client(tenant).search(name, fields)
    if json:
        output.write_json(found)
        return
    for passage in found["data"]:
        output.write_data(f"{passage['document_id']}#{passage['ordinal']} ({passage['score']:.3f})")
        output.write_data(f"{passage['text'].strip()}\n")
    if found["omitted"]:
        output.write_note(f"not searched in time: {', '.join(found['omitted'])}")


def _expanded(paths: list[Path]) -> Iterator[Path]:
    """Yield the files, and those in folders whose types are known, by name.

    Raises ConfigError for a folder without such files.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(each for each in path.rglob("*") if each.is_file() and each.suffix.lower() in TYPES)
        if not inside:
            raise ConfigError(f"FILE={str(path)!r} is a folder without files that end with {', '.join(TYPES)}")
        yield from inside


def _check_id(document: str, paths: list[Path]) -> None:
    if len(paths) != 1:
        raise ConfigError(f"--id={document!r} names one document, and there are {len(paths)} files")
    if _id_of(Path(document)) != document:
        raise ConfigError(f"--id={document!r}: an id does not begin with '/' and has no parts '.' and '..'")


def _id_of(path: Path) -> str:
    """Return the id of a file's document: its path, without the parts that servers remove from URLs."""
    document = "/".join(part for part in path.parts if part not in {"/", "..", "."})
    if not 1 <= len(document) <= _MAX_ID_CHARS or not document.isprintable():
        raise ConfigError(f"FILE={document[:80]!r} cannot be an id of a document; name one with --id")
    return document


def _load(
    client: "CollectionClient", name: str, path: Path, document: str, metadata: dict[str, Any], wait_s: float
) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"FILE={str(path)!r} cannot be read: {error.strerror}") from None

    def tell(error: "DoorError", pause_s: float) -> None:
        output.write_note(f"{path}: {error}; trying again in {format_duration(1000 * pause_s)}")

    kind = TYPES.get(path.suffix.lower(), "text/plain")
    return client.load(
        name,
        document,
        content,
        file_name=path.name[-256:],
        content_type=kind,
        metadata=metadata,
        wait_s=wait_s,
        on_wait=tell,
    )


def _metadata(entries: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for entry in entries:
        name, separator, text = entry.partition("=")
        if not separator or not name:
            raise ConfigError(f"--metadata={entry!r} is not NAME=VALUE")
        try:
            fields[name] = json_module.loads(text)
        except ValueError:
            fields[name] = text
    return fields


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json_module.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option}={text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{option}={text!r} is not a JSON object")
    return value


def _time(seconds: float | None) -> str:
    return format_timestamp(None if seconds is None else 1000 * seconds)

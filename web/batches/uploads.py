"""Receives an uploaded file part by part, so that never more than one part of it is in memory."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from shared.errors import FilesUnavailable
from shared.store.batches.files import PART_BYTES, Files, StoredFile
from shared.store.batches.repeats import Repeats
from shared.store.repeat_lookup import EarlierRequest
from web.api.body import digest
from web.batches.cells import home_of_new
from web.batches.records import no_room_error
from web.http.api_errors import ApiError, invalid, invalid_field, quoted
from web.jobs.spilling import other_cell_of_repeat
from web.retrieval.formats.documents import UnreadableDocument, format_of
from web.runtime.context import DoorContext

_READ_BYTES = 65_536
#: How much of a file is held in memory, at most: a part, and the text after it in the form.
HELD_BYTES = 2 * PART_BYTES
#: The longest rest of a form besides the file, in bytes.
FORM_BYTES = 65_536
_MAX_FIELD_BYTES, _MAX_FIELDS, _MAX_NAME_CHARS = 1_024, 16, 255
_SHORTEST_TTL_S = 3_600
#: The purposes of uploads: a batch of requests, and documents of vector stores.
BATCH, DOCUMENTS = "batch", ("assistants", "user_data")
_FIELDS = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})


#: Returns the next bytes of a request's body, up to this number, and b"" at the end. Raises ApiError.
Source = Callable[[int], bytes]


class _Upload:
    def __init__(self, files: Files, file_id: str, tenant: str, max_bytes: int) -> None:
        self._files, self._tenant, self._max_bytes = files, tenant, max_bytes
        self.id = file_id
        self.filename = ""
        self.fields: dict[str, str] = {}
        self._held, self._parts, self._bytes = bytearray(), 0, 0
        self._sha256 = hashlib.sha256()

    def receive(self, source: Source, boundary: bytes) -> None:
        """Read the form. Raises ApiError."""
        target = ""
        for event in _events(source, boundary):
            if isinstance(event, File | Field):
                target = self._begin(event)
            elif isinstance(event, Data) and target == "file":
                self._add(event.data)
            elif isinstance(event, Data):
                self._add_to_field(target, event.data)
        if self._held or not self._parts:
            self._store(len(self._held))

    @property
    def size(self) -> int:
        """The bytes of the file so far."""
        return self._bytes

    @property
    def body_digest(self) -> str:
        """The digest of the received bytes, which identifies a repetition of the upload."""
        fields = (part for item in sorted(self.fields.items()) for part in item)
        return digest(self._sha256.hexdigest(), self.filename, *fields)

    def _begin(self, event: File | Field) -> str:
        name = event.name or ""
        if isinstance(event, File) and name == "file" and not self.filename:
            self.filename = (event.filename or "file")[:_MAX_NAME_CHARS]
            return "file"
        if isinstance(event, File) or name not in _FIELDS or len(self.fields) >= _MAX_FIELDS or name in self.fields:
            raise invalid_field(name[:80], f"unknown or repeated field {quoted(name)} of the form")
        self.fields[name] = ""
        return name

    def _add(self, content: bytes | bytearray) -> None:
        self._bytes += len(content)
        if self._bytes > self._max_bytes:
            raise _too_long(self._max_bytes)
        self._held += content
        self._sha256.update(content)
        while len(self._held) >= PART_BYTES:
            self._store(PART_BYTES)

    def _add_to_field(self, name: str, content: bytes | bytearray) -> None:
        self.fields[name] += content.decode("utf-8", "replace")
        if len(self.fields[name]) > _MAX_FIELD_BYTES:
            raise invalid_field(name, f"{name} is longer than {_MAX_FIELD_BYTES} characters")

    def _store(self, count: int) -> None:
        no_room = self._files.add_part(self.id, self._tenant, self._parts, bytes(self._held[:count]))
        if no_room is not None:
            raise no_room_error(no_room, self._tenant, param="file")
        del self._held[:count]
        self._parts += 1


def cell_of_upload(context: DoorContext, tenant: str, idem_digest: str) -> DoorContext:
    """Return the context of the tenant's home, or of the cell with the file of an earlier upload like this one.

    `idem_digest` is that of the Idempotency-Key, "" for none. Raises ApiError and StoreUnavailable as `home_of_new`.
    """
    if not idem_digest:
        return home_of_new(context, tenant)
    first = context.cells.home(tenant)
    kept_ms, earlier = context.settings.file_ttl_s * 1_000, EarlierRequest(idem_digest)
    found = other_cell_of_repeat(first, tenant, context, lambda _: earlier, kept_ms=kept_ms)
    return found or home_of_new(context, tenant)


def receive_file(
    context: DoorContext, tenant: str, source: Source, content_type: str, idem_digest: str = ""
) -> StoredFile:
    """Store the file in a form, and return it, or the one that an upload with the same `idem_digest` has stored.

    Raises ApiError and FilesUnavailable; then nothing is kept. Raises StoreUnavailable; then the parts that were stored
    count among the bytes of files for another hour.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not 1 <= len(boundary) <= 200:
        message = f"Content-Type is {(content_type or 'nothing')[:80]!r}; send multipart/form-data"
        raise ApiError("unsupported_media_type", message, param="Content-Type")
    files = context.files
    upload = _Upload(files, context.new_file_id(), tenant, context.settings.max_file_bytes)
    try:
        upload.receive(source, boundary.encode("latin-1", "replace"))
        ttl_s = _check_fields(upload, context.settings.file_ttl_s)
        purpose = upload.fields["purpose"]
        if purpose in DOCUMENTS:
            _check_document(upload, context.settings.max_document_bytes)
        repeats = Repeats(idem_digest, upload.body_digest)
        file = files.close(upload.id, tenant, purpose=purpose, filename=upload.filename, ttl_s=ttl_s, repeats=repeats)
    except LookupError:
        raise ApiError("internal_error", "parts of the file were lost while it was uploaded; upload it again") from None
    except (ApiError, FilesUnavailable):
        files.delete(upload.id, tenant)
        raise
    except RequestEntityTooLarge:
        files.delete(upload.id, tenant)
        most = context.settings.max_file_bytes
        message = f"the body is longer than {most + FORM_BYTES} bytes; a file may have {most} (PENSTOCK_MAX_FILE_BYTES)"
        raise ApiError("request_too_large", message) from None
    if file is None:
        message = "this Idempotency-Key was already used for a file, with a different request body"
        raise ApiError("idempotency_mismatch", message, param="Idempotency-Key")
    return file


def _check_fields(upload: _Upload, longest_s: int) -> int:
    """Return how long the file is kept, in s. Raises ApiError."""
    if not upload.filename:
        raise invalid_field("file", "field 'file' is required")
    purpose = upload.fields.get("purpose")
    if purpose is None:
        raise invalid_field("purpose", "field 'purpose' is required")
    if purpose not in {BATCH, *DOCUMENTS}:
        accepted = ", ".join(map(repr, (BATCH, *DOCUMENTS)))
        raise invalid_field("purpose", f"purpose={quoted(purpose)} is not one of {accepted}")
    anchor = upload.fields.get("expires_after[anchor]", "created_at")
    if anchor != "created_at":
        name = "expires_after[anchor]"
        raise invalid(name, anchor, "'created_at'")
    seconds = upload.fields.get("expires_after[seconds]")
    if seconds is None:
        return longest_s
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 10) or not (
        _SHORTEST_TTL_S <= int(seconds) <= max(longest_s, _SHORTEST_TTL_S)
    ):
        name, bounds = "expires_after[seconds]", f"from {_SHORTEST_TTL_S} to {longest_s}"
        raise invalid(name, seconds, f"a whole number {bounds}")
    return int(seconds)


def _check_document(upload: _Upload, most: int) -> None:
    """Raise ApiError for a file that no vector store could load: its name says no known format, or it is too long."""
    try:
        format_of("", upload.filename)
    except UnreadableDocument as error:
        raise invalid_field("file", f"file={quoted(upload.filename)}: {error}") from None
    if upload.size > most:
        message = f"the file is longer than {most} bytes (PENSTOCK_MAX_DOCUMENT_BYTES)"
        raise ApiError("request_too_large", message)


def _events(source: Source, boundary: bytes) -> Iterator[Any]:
    """Yield the events of a form. Raises ApiError if it is malformed, has too many fields or a field is too long."""
    decoder = MultipartDecoder(boundary, max_form_memory_size=4 * _READ_BYTES, max_parts=_MAX_FIELDS)
    try:
        while True:
            try:
                event = decoder.next_event()
            except RequestEntityTooLarge:
                raise ApiError("request_too_large", f"the form has more than {_MAX_FIELDS} fields") from None
            if isinstance(event, NeedData):
                content = source(_READ_BYTES)
                try:
                    decoder.receive_data(content or None)
                except RequestEntityTooLarge:
                    # Content is passed on as it arrives. The decoder holds back only headers and the preamble.
                    message = f"what precedes the content of a field takes more than {3 * _READ_BYTES} bytes"
                    raise ApiError("request_too_large", message) from None
            elif isinstance(event, Epilogue):
                return
            else:
                yield event
    except ValueError as error:
        raise ApiError("invalid_request", f"the body is no form of type multipart/form-data: {error}") from None


def _too_long(max_bytes: int) -> ApiError:
    return ApiError("request_too_large", f"the file is longer than {max_bytes} bytes (PENSTOCK_MAX_FILE_BYTES)")

"""The client with which `penstock batch` uploads files, runs batches and reads their results."""

import os
import secrets
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError

from shared.cli.door_client import RETRY_PAUSES_S, DoorClient, DoorError, Json, Reply, checked_body, door_error
from shared.cli.sse import parse_json_object

#: The pauses between two polls of a batch, in seconds: at first and at most. They grow while nothing changes.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
#: How long polling continues, in seconds, while the door or its store is down, or the tenant has too many requests.
_MAX_OUTAGE_S = 300.0
#: The read timeout of requests with the content of a file, in seconds. The door answers an upload when the file is on
#: its disk, and gives up each of a few calls to the disk after 30 s.
_FILES_TIMEOUT_S = 120.0
#: How much of a file is in memory at once.
_PART_BYTES = 65_536
#: A batch with one of these statuses does not change any more.
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


class BatchClient(DoorClient):
    """Client for the files and batches of one tenant.

    Every method raises DoorError if the door cannot be reached or answers with an error.
    """

    def upload(self, path: Path, on_progress: Callable[[int, int], None]) -> str:
        """Upload a file and return its id; `on_progress` is called with the bytes sent so far and their number.

        Raises OSError if the file cannot be read. If no answer arrives, the file is sent again, with the same
        Idempotency-Key, so that it is stored once.
        """
        idempotency_key = str(uuid.uuid4())
        for pause_s in (*RETRY_PAUSES_S, None):
            with path.open("rb") as file:
                form = _Form(file, path.name, on_progress)
                headers = {"Content-Type": form.content_type, "Content-Length": str(form.length)}
                headers["Idempotency-Key"] = idempotency_key
                try:
                    with self.open("POST", "/v1/files", form, headers, timeout_s=_FILES_TIMEOUT_S) as response:
                        return str(parse_json_object(response.read()).get("id", ""))
                except HTTPError as error:
                    raise _error_of(error) from None
                except (OSError, HTTPException) as error:
                    if pause_s is None or isinstance(getattr(error, "reason", error), ConnectionRefusedError):
                        raise self.unreachable_error(error) from error
            self.sleep(pause_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def create(self, file_id: str, *, endpoint: str, window: str) -> Json:
        """Create a batch and return it. The request has an Idempotency-Key, so that a repetition finds the batch."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        return checked_body(self.send("POST", "/v1/batches", body, {"Idempotency-Key": str(uuid.uuid4())}), "id")

    def cancel(self, batch_id: str) -> Json:
        return checked_body(self.send("POST", f"{_path(batch_id)}/cancel"), "id")

    def follow(self, batch_id: str) -> Iterator[Json]:
        """Yield the batch as each poll returns it, until it has ended, also while doors are restarted."""
        before: Json | None = None
        pause_s, outage_began_s = _FIRST_PAUSE_S, None
        while True:
            try:
                batch = checked_body(self.send("GET", _path(batch_id), retry_refused=True), "id")
            except DoorError as error:
                now_s = self.clock.monotonic()
                outage_began_s = outage_began_s or now_s
                if not _is_passing(error) or now_s - outage_began_s + error.retry_after_s > _MAX_OUTAGE_S:
                    raise
                self.sleep(max(pause_s, error.retry_after_s))
            else:
                outage_began_s = None
                yield batch
                if batch["status"] in ENDED:
                    return
                pause_s = _FIRST_PAUSE_S if batch != before else min(2 * pause_s, _LONGEST_PAUSE_S)
                before = batch
                self.sleep(pause_s)

    def download(self, file_id: str, path: Path) -> None:
        """Write the content of a file to `path`, which appears when it is complete. Raises OSError."""
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        try:
            for pause_s in (*RETRY_PAUSES_S, None):
                try:
                    self._download_once(file_id, draft)
                    break
                except HTTPError as error:
                    answered = _error_of(error)
                    if pause_s is None or not _is_passing(answered):
                        raise answered from None
                    self.sleep(max(pause_s, answered.retry_after_s))
                except (HTTPException, ConnectionError, TimeoutError) as error:
                    if pause_s is None:
                        raise self.unreachable_error(error) from error
                    self.sleep(pause_s)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def delete_file(self, file_id: str) -> None:
        checked_body(self.send("DELETE", f"/v1/files/{urllib.parse.quote(file_id, safe='')}"), "id")

    def _download_once(self, file_id: str, draft: Path) -> None:
        path = f"/v1/files/{urllib.parse.quote(file_id, safe='')}/content"
        with self.open("GET", path, None, {}, timeout_s=_FILES_TIMEOUT_S) as response, draft.open("wb") as file:
            length = 0
            while part := response.read(_PART_BYTES):
                length += file.write(part)
            # http.client reports a connection that ended too early only to a caller that reads everything at once.
            if str(length) != response.headers.get("Content-Length", str(length)):
                raise ConnectionError(f"the connection ended after {length} bytes")


class _Form:
    """The form of an upload, which is read from the file while it is sent."""

    def __init__(self, file: BinaryIO, name: str, on_progress: Callable[[int, int], None]) -> None:
        boundary = secrets.token_hex(16)
        quoted = name.encode("utf-8", "replace").decode().translate({ord('"'): "%22", 13: "%0D", 10: "%0A"})
        begin = f"--{boundary}\r\nContent-Disposition: form-data; name="
        self._before = f'{begin}"purpose"\r\n\r\nbatch\r\n{begin}"file"; filename="{quoted}"\r\n\r\n'.encode()
        self._after = f"\r\n--{boundary}--\r\n".encode()
        self._file, self._on_progress = file, on_progress
        self._bytes, self._sent = os.fstat(file.fileno()).st_size, 0
        self.length = len(self._before) + self._bytes + len(self._after)
        self.content_type = f"multipart/form-data; boundary={boundary}"

    def read(self, _size: int = -1, /) -> bytes:
        """Return the next part. The file must not change meanwhile: its length is in the head of the request."""
        if self._before:
            part, self._before = self._before, b""
            return part
        if part := self._file.read(min(_PART_BYTES, self._bytes - self._sent)):
            self._sent += len(part)
            self._on_progress(self._sent, self._bytes)
            return part
        part, self._after = self._after, b""
        return part


def _path(batch_id: str) -> str:
    return f"/v1/batches/{urllib.parse.quote(batch_id, safe='')}"


def _is_passing(error: DoorError) -> bool:
    """Return whether a later request may succeed: the door or its store is away, or too many requests are open."""
    return error.status in {0, 429} or error.status >= 500


def _error_of(error: HTTPError) -> DoorError:
    with error:
        return door_error(Reply(error.code, error.headers, parse_json_object(error.read())))

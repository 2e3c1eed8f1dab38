"""The client with which `penstock collections` creates, lists, loads and searches collections."""

import io
import json
import urllib.parse
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

from shared.cli.door_client import RETRY_PAUSES_S, DoorClient, DoorError, Json, Reply, checked_body, door_error
from shared.cli.sse import parse_json_object

#: The documents of one page.
_PAGE = 100
#: The shortest time that a door gets to answer, in seconds.
_SHORTEST_S = 15.0
#: The wait before a load is sent again if the answer names none, in seconds.
_DEFAULT_PAUSE_S = 1.0
#: The statuses after which the same document may be loaded later, and the codes that say it will never fit.
_PASSING, _FINAL = frozenset({429, 503, 504}), frozenset({"collections_full", "budget_exhausted"})


class CollectionClient(DoorClient):
    """Client for the collections of one tenant.

    Every method raises DoorError if the door cannot be reached or answers with an error.
    """

    def create(self, fields: Json) -> Json:
        return checked_body(self.send("POST", "/v1/collections", fields), "object")

    def collections(self) -> list[Json]:
        return list(checked_body(self.send("GET", "/v1/collections"), "object").get("data", []))

    def delete(self, name: str) -> None:
        checked_body(self.send("DELETE", _path(name)), "object")

    def documents(self, name: str) -> Iterator[Json]:
        """Yield the documents of a collection, by id."""
        after = ""
        while True:
            query = {"limit": str(_PAGE)} | ({"after": after} if after else {})
            page = checked_body(self.send("GET", f"{_path(name)}/documents?{urllib.parse.urlencode(query)}"), "object")
            yield from page.get("data", [])
            if not page.get("has_more"):
                return
            after = page["last_id"]

    def delete_document(self, name: str, document_id: str) -> None:
        checked_body(self.send("DELETE", _document_path(name, document_id)), "object")

    def search(self, name: str, fields: Json) -> Json:
        return checked_body(self.send("POST", f"{_path(name)}/search", fields), "object")

    def load(
        self,
        name: str,
        document_id: str,
        content: bytes,
        *,
        file_name: str,
        content_type: str,
        metadata: dict[str, Any],
        wait_s: float,
        on_wait: Callable[[DoorError, float], None],
    ) -> Json:
        """Load a file as a document and return the document.

        While the embedding model or the door takes no work, wait as long as the answers ask for, in all at most
        `wait_s`; `on_wait` is called with each answer and the seconds of the wait.
        """
        query = {"filename": file_name} | ({"metadata": json.dumps(metadata)} if metadata else {})
        path = f"{_document_path(name, document_id)}?{urllib.parse.urlencode(query)}"
        until_s = self.clock.monotonic() + wait_s
        failures = 0
        while True:
            try:
                return self._load_once(path, content, content_type, until_s - self.clock.monotonic())
            except DoorError as error:
                pause_s = error.retry_after_s or _DEFAULT_PAUSE_S
                if error.status == 0:
                    if failures >= len(RETRY_PAUSES_S):
                        raise
                    pause_s = RETRY_PAUSES_S[failures]
                    failures += 1
                elif error.status not in _PASSING or error.code in _FINAL:
                    raise
                if self.clock.monotonic() + pause_s > until_s:
                    raise
                on_wait(error, pause_s)
                self.sleep(pause_s)

    def _load_once(self, path: str, content: bytes, content_type: str, left_s: float) -> Json:
        headers = {"Content-Type": content_type, "Content-Length": str(len(content))}
        timeout_s = max(_SHORTEST_S, left_s)
        try:
            with self.open("PUT", path, io.BytesIO(content), headers, timeout_s=timeout_s) as response:
                return parse_json_object(response.read())
        except HTTPError as error:
            with error:
                raise door_error(Reply(error.code, error.headers, parse_json_object(error.read()))) from None
        except (OSError, HTTPException) as error:
            raise self.unreachable_error(error) from error


def _path(name: str) -> str:
    return f"/v1/collections/{urllib.parse.quote(name, safe='')}"


def _document_path(name: str, document_id: str) -> str:
    return f"{_path(name)}/documents/{urllib.parse.quote(document_id)}"

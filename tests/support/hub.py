"""A fake model hub on loopback: an HTTP server with the few routes that huggingface-hub calls for model files."""

import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit


@dataclass
class FakeModelHub:
    """A hub whose repos map `org/repo` to file names and their paths. All revisions of a repo are one commit."""

    repos: dict[str, dict[str, Path]] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main",)
    #: Sizes that the hub reports instead of the true ones.
    reported_sizes: dict[str, int] = field(default_factory=dict)
    #: Repos whose terms of use have not been accepted.
    gated: set[str] = field(default_factory=set)
    #: Repos whose files are in a chunked store whose address the hub does not name.
    chunked: set[str] = field(default_factory=set)
    #: Repos for which the hub sends a login page instead of their description, as a proxy may do.
    behind_login_page: set[str] = field(default_factory=set)
    #: Whether requests for a part of a file get only that part.
    ranges: bool = True
    #: The bytes of files that were sent so far.
    sent_bytes: int = 0
    #: The method and path of every request so far.
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # a client may want only the beginning of a file
                    super().handle()

            def do_GET(self) -> None:
                hub._answer(self, body=True)

            def do_HEAD(self) -> None:
                hub._answer(self, body=False)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def downloads(self) -> list[str]:
        """Return the names of the files whose content was requested."""
        return [line.rpartition("/")[2] for line in self.requests if line.startswith("GET") and "/resolve/" in line]

    def _answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(request.path).path).lstrip("/")
        self.requests.append(f"{request.command} {path}")
        if path.startswith("api/models/"):
            repo, _, revision = path.removeprefix("api/models/").partition("/revision/")
            self._info(request, repo, revision)
            return
        repo, _, rest = path.partition("/resolve/")
        _, _, name = rest.partition("/")
        file = self.repos.get(repo, {}).get(name)
        if file is None:
            self._fail(request, 404, "RepoNotFound" if repo not in self.repos else "EntryNotFound")
            return
        content = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": _commit(repo)}
        if repo in self.chunked:
            headers |= {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": f"{self.url}/api/models/{repo}"}
        status, part = 200, re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if part is not None and self.ranges:
            begin, end = int(part[1]), min(int(part[2]) + 1, len(content))
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
            status, content = 206, content[begin:end]
        self.sent_bytes += len(content) if body else 0
        self._send(request, status, content, headers, body=body)

    def _info(self, request: BaseHTTPRequestHandler, repo: str, revision: str) -> None:
        if repo not in self.repos:
            self._fail(request, 404, "RepoNotFound")
        elif repo in self.behind_login_page:
            self._send(request, 200, b"<html>please log in</html>", {"Content-Type": "text/html"})
        elif repo in self.gated:
            self._fail(request, 403, "GatedRepo")
        elif revision and revision not in {*self.revisions, _commit(repo)}:
            self._fail(request, 404, "RevisionNotFound")
        else:
            files = self.repos[repo]
            siblings = [
                {"rfilename": name, "size": self.reported_sizes.get(name, file.stat().st_size), "blobId": "0" * 40}
                for name, file in files.items()
            ]
            info: dict[str, Any] = {"_id": "1", "id": repo, "modelId": repo, "sha": _commit(repo), "siblings": siblings}
            self._send(request, 200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _fail(self, request: BaseHTTPRequestHandler, status: int, code: str) -> None:
        self._send(request, status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str], *, body: bool = True
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if body:
            request.wfile.write(content)


def _commit(repo: str) -> str:
    return hashlib.sha1(repo.encode(), usedforsecurity=False).hexdigest()

"""A hub on loopback: a real HTTP server with the few routes that huggingface-hub calls for a model's files."""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """Repos as folders of files: `org/repo` → name of a file → where it lies. Every revision is one commit."""

    repos: dict[str, dict[str, Path]] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main",)
    #: Sizes that it claims instead of the true ones.
    claims: dict[str, int] = field(default_factory=dict)
    #: Repos whose terms nobody has accepted.
    gated: set[str] = field(default_factory=set)
    #: Repos whose files lie in a store of chunks, of which it does not say where that is.
    chunked: set[str] = field(default_factory=set)
    #: Repos instead of whose description a page comes, as from a proxy that wants somebody to log in.
    behind_a_page: set[str] = field(default_factory=set)
    #: Methods and paths, as they were asked for.
    asked: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

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
        """Go away: nobody answers any more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def downloads(self) -> list[str]:
        """Names of the files whose bytes were asked for."""
        return [line.rpartition("/")[2] for line in self.asked if line.startswith("GET") and "/resolve/" in line]

    def _answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(request.path).path).lstrip("/")
        self.asked.append(f"{request.command} {path}")
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
        self._send(request, 200, content, headers, body=body)

    def _info(self, request: BaseHTTPRequestHandler, repo: str, revision: str) -> None:
        if repo not in self.repos:
            self._fail(request, 404, "RepoNotFound")
        elif repo in self.behind_a_page:
            self._send(request, 200, b"<html>please log in</html>", {"Content-Type": "text/html"})
        elif repo in self.gated:
            self._fail(request, 403, "GatedRepo")
        elif revision and revision not in {*self.revisions, _commit(repo)}:
            self._fail(request, 404, "RevisionNotFound")
        else:
            files = self.repos[repo]
            siblings = [
                {"rfilename": name, "size": self.claims.get(name, file.stat().st_size), "blobId": "0" * 40}
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

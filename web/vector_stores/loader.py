"""The duty that loads the files of vector stores: each HTTP process claims some at once, each load in a thread.

A claim ends by itself if its process dies; then another process claims the file, at most _MAX_ATTEMPTS times. A file
that has to wait for a worker of its embedding model is given back, so that it holds no place of the process meanwhile.
"""

import secrets
import threading
import time
from contextlib import suppress

from shared.errors import FilesUnavailable, StoreUnavailable
from shared.log import LimitedEvent, get_logger
from shared.retrieval.errors import ClaimGone, DatabaseAway, OutOfTime, RetrievalError
from shared.retrieval.file_records import ErrorCode, FileLoad
from web.http import shutdown
from web.http.api_errors import ApiError
from web.jobs.callers import stored_caller
from web.retrieval.embedding import EmbeddingLate, EmbeddingRefused
from web.retrieval.loading import File, NewDocument, load_document
from web.runtime.context import DoorContext

log = get_logger()
_AWAY = LimitedEvent("vector_stores.database_away")

#: How many files one process loads at once, and of one tenant.
_AT_ONCE, _OF_TENANT = 4, 2
#: How long a claim holds without renewal, and how often it is renewed, in seconds.
LEASE_S, _RENEW_S = 30.0, 3.0
#: The longest wait before a process looks for files that others have left, and the wait after an error, in seconds.
_LOOK_S, _AFTER_ERROR_S = 3.0, 3.0
#: How long one load may take, and how long a file rests that cannot be loaded now, in seconds.
_LOAD_S, _REST_S = 1_800.0, 1.0
#: How long the files of a tenant with the same model rest after one of them had no worker, was refused or had to wait
#: too long, and at most after a refusal that names a time, in seconds.
_REST_WITHOUT_WORKER_S, _LONGEST_REST_S = 5.0, 60.0
#: After how many seconds a file has failed that still waits for a worker.
_WAITS_S = 86_400.0
#: After how many interrupted loads a file has failed.
_MAX_ATTEMPTS = 3
#: The codes of errors after which a file is loaded later: the process has no place for it, stops, or has no database.
_LATER = frozenset({"loads_full", "draining", "database_unavailable"})
#: The codes of files that cannot be loaded, for the errors of the loads of documents.
_CODES: dict[str, ErrorCode] = {
    "unsupported_media_type": "unsupported_file",
    "document_unreadable": "invalid_file",
    "request_too_large": "invalid_file",
}


def start_loading(context: DoorContext) -> None:
    """Start the duty, if the door has a database."""
    if context.database is not None:
        threading.Thread(target=Loader(context).run, name="vector-stores", daemon=True).start()


class _Running:
    """A load that runs in this process. `gone` is set when its claim has ended."""

    def __init__(self, load: FileLoad) -> None:
        self.load = load
        self.gone = threading.Event()

    def reason_to_stop(self) -> ApiError | None:
        """Return the error with which the load ends early, or None."""
        if shutdown.requested.is_set():
            return ApiError("draining", "the server is stopping")
        return ApiError("request_timeout", "the file was removed or changed") if self.gone.is_set() else None


class Loader:
    """The loads of one process. `lease_s` is how long a claim holds."""

    def __init__(self, context: DoorContext, *, lease_s: float = LEASE_S) -> None:
        if context.database is None:
            raise ValueError("the door has no database")
        self._context, self._loads, self._lease_s = context, context.database.loads, lease_s
        self._running: dict[str, _Running] = {}
        #: Until when the files of a tenant with a model rest, in seconds of time.monotonic().
        self._resting: dict[tuple[str, str], float] = {}
        self._next_renewal_s = 0.0

    def run(self) -> None:
        """Load files until the process stops."""
        wait = self._context.files_wait
        while not shutdown.requested.is_set():
            try:
                self.one_pass()
                rest_s = min(_LOOK_S, self._lease_s / 4)
            except (DatabaseAway, OutOfTime) as error:
                _AWAY.log("warning", error=str(error))
                rest_s = _AFTER_ERROR_S
            except Exception:
                log.exception("vector_stores.fault")
                rest_s = _AFTER_ERROR_S
            wait.wait(rest_s)
            wait.clear()

    def one_pass(self) -> None:
        """Renew the claims of this process, and start loads while there are files and places. Raises RetrievalError."""
        self._renew()
        while len(self._running) < _AT_ONCE:
            token = secrets.token_hex(16)
            load = self._loads.claim(token, self._lease_s, without=self._busy(), resting=self._rest())
            if load is None:
                return
            running = self._running[load.claim] = _Running(load)
            try:
                threading.Thread(target=self._run, args=(running,), name="load-file", daemon=True).start()
            except RuntimeError:  # the process can have no more threads
                del self._running[load.claim]
                self._loads.release(load, _REST_S, "the process can have no more threads")
                return

    def _busy(self) -> set[str]:
        """Return the tenants whose files this process loads, as many as it may at once."""
        tenants = [running.load.tenant for running in self._running.values()]
        return {tenant for tenant in tenants if tenants.count(tenant) >= _OF_TENANT}

    def _rest(self) -> set[tuple[str, str]]:
        """Return the tenants and models whose files rest."""
        now_s = time.monotonic()
        for pair in [pair for pair, until_s in list(self._resting.items()) if until_s <= now_s]:
            del self._resting[pair]
        return set(self._resting)

    def _renew(self) -> None:
        if not self._running or time.monotonic() < self._next_renewal_s:
            return
        self._next_renewal_s = time.monotonic() + min(_RENEW_S, self._lease_s / 4)
        tokens = list(self._running)
        alive = self._loads.renew(tokens, self._lease_s)
        for token in tokens:
            running = self._running.get(token)
            if running is not None and token not in alive:
                running.gone.set()

    def _run(self, running: _Running) -> None:
        try:
            self._load(running)
        except Exception:
            # The claim ends by itself, and counts as an attempt.
            log.exception("vector_stores.load_fault", tenant=running.load.tenant)
        finally:
            self._running.pop(running.load.claim, None)
            self._context.files_wait.set()

    def _load(self, running: _Running) -> None:
        load = running.load
        try:
            load_file(self._context, load, running)
            self._context.metrics.count_file_load("completed")
        except ClaimGone:
            log.info("vector_stores.claim_gone", tenant=load.tenant)
        except (StoreUnavailable, FilesUnavailable) as error:
            self._later(load, str(error))
        except EmbeddingRefused as refused:
            self._refused(load, refused)
        except EmbeddingLate as late:
            self._waits(load, str(late), _REST_WITHOUT_WORKER_S)
        except LookupError:
            self._fail(load, "invalid_file", "the content of the file is gone")
        except ApiError as error:
            if running.gone.is_set():
                return
            if error.code in _LATER:
                self._later(load, error.message)
                return
            if error.code == "model_not_found" and _may_use(self._context, load):
                self._waits(load, error.message, _REST_WITHOUT_WORKER_S)
                return
            self._fail(load, _CODES.get(error.code, "server_error"), error.message)

    def _refused(self, load: FileLoad, refused: EmbeddingRefused) -> None:
        why, hint_ms = f"the embedding model takes no work: {refused}", refused.answer.body["retry_hint_ms"]
        if hint_ms is None:
            self._fail(load, "server_error", why)
        else:
            self._waits(load, why, min(max(hint_ms / 1000, _REST_WITHOUT_WORKER_S), _LONGEST_REST_S))

    def _waits(self, load: FileLoad, why: str, rest_s: float) -> None:
        """Give a file back that waits for a worker, or fail it if it has waited too long."""
        if load.waited_s > _WAITS_S:
            self._fail(load, "server_error", why)
            return
        if load.model is not None:
            self._resting[load.tenant, load.model] = time.monotonic() + rest_s
        self._later(load, why, rest_s)

    def _later(self, load: FileLoad, why: str, rest_s: float = _REST_S) -> None:
        self._context.metrics.count_file_load("given_back")
        # If the database is away too, the claim ends by itself.
        with suppress(RetrievalError):
            self._loads.release(load, 0.0 if shutdown.requested.is_set() else rest_s, why)

    def _fail(self, load: FileLoad, code: ErrorCode, message: str) -> None:
        self._context.metrics.count_file_load(code)
        log.info("vector_stores.load_failed", tenant=load.tenant, code=code, error=message[:200])
        with suppress(RetrievalError):
            self._loads.fail(load, code, message)


def _may_use(context: DoorContext, load: FileLoad) -> bool:
    """Return whether the file's embedding model is only away, and not forbidden to its tenant."""
    caller = stored_caller(context, load.tenant, load.key_label, load.key_digest)
    return load.model is not None and (caller is None or caller.policy is None or caller.policy.may_use(load.model))


def load_file(context: DoorContext, load: FileLoad, running: _Running) -> None:
    """Load a claimed file.

    Raises ApiError, EmbeddingRefused, EmbeddingLate, ClaimGone, StoreUnavailable and LookupError.
    """
    if load.attempts > _MAX_ATTEMPTS:
        raise ApiError("internal_error", f"the load of the file was interrupted {_MAX_ATTEMPTS} times")
    caller = stored_caller(context, load.tenant, load.key_label, load.key_digest)
    if caller is None:
        message = "the key with which the file was added is no longer valid, or its tenant is disabled"
        raise ApiError("tenant_disabled", message)
    files, most = context.of_stored(load.file.id).files, context.settings.max_document_bytes
    stored = files.find(load.file.id, load.tenant)
    if stored is None:
        raise LookupError(load.file.id)
    if stored.bytes > most:
        message = f"the file has {stored.bytes} bytes; at most {most} (PENSTOCK_MAX_DOCUMENT_BYTES)"
        raise ApiError("request_too_large", message)
    content = b"".join(files.read(stored))
    file = load.file
    new = NewDocument(
        file.id, File(content, "", file.filename), dict(file.metadata), file.chunk_tokens, file.overlap_tokens
    )
    until = time.monotonic() + _LOAD_S
    # Its jobs are offered where the tenant lives now, which may not be the cell of the file.
    load_document(
        context.cells.serving(load.tenant), caller, load.collection, new, until, stop=running.reason_to_stop, claim=load
    )

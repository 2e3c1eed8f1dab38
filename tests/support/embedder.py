"""A worker of an embedding model in a thread of the test: its vectors count the words of a text."""

import base64
import math
import threading
import zlib
from array import array
from types import TracebackType
from typing import Any, Self

from shared.jobs.job import ClaimedJob, Ending, Usage, new_job_id
from shared.jobs.outcomes import EndCode, Outcome
from shared.store.store import Store
from tests.support.builders import a_heartbeat

#: The pause between two claims, and the time between two heartbeats, in seconds.
_REST_S, _BEAT_S = 0.004, 1.0


def word_vector(text: str, width: int) -> list[float]:
    """Return the vector of a text: texts with common words are near each other."""
    counts = [0.0] * width
    for word in text.lower().split():
        counts[zlib.crc32(word.strip(".,?!").encode()) % width] += 1.0
    length = math.sqrt(sum(count * count for count in counts)) or 1.0
    return [count / length for count in counts]


class Embedder:
    """Claims and ends jobs while the context is open. A text of more words than `n_ctx` fails its job."""

    def __init__(
        self, store: Store, *, model: str = "vectors", width: int = 16, n_ctx: int = 256, forwards: bool = False
    ) -> None:
        """With `forwards`, it is a worker before an upstream, whose dimensions nobody knows."""
        self._store, self.model, self.width, self.n_ctx, self._forwards = store, model, width, n_ctx, forwards
        #: The claimed jobs, in order.
        self.claimed: list[ClaimedJob] = []
        #: While it is not set, no job is claimed.
        self.works = threading.Event()
        self.works.set()
        #: The code with which every job fails; "" for none.
        self.fails_with = ""
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embedder", daemon=True)

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stops.set()
        self._thread.join(10)

    @property
    def texts(self) -> int:
        """How many texts the claimed jobs had."""
        return sum(len(job.payload["input"]) for job in self.claimed)

    def _facts(self) -> dict[str, Any]:
        if self._forwards:
            return {"forwards": "true"}
        return {"pooling": "mean", "width": self.width, "n_ctx": self.n_ctx, "counts_words": "true"}

    def _beat(self) -> None:
        facts = self._facts()
        self._store.renew(a_heartbeat(f"worker-{self.model}", slots=4, model=self.model, facts=facts), ())

    def _run(self) -> None:
        beats = 0
        while not self._stops.wait(_REST_S):
            beats += 1
            if beats * _REST_S > _BEAT_S:
                beats = 0
                self._beat()
            if not self.works.is_set():
                continue
            jobs = self._store.claim(f"worker-{self.model}", new_job_id(), self.model, room=4, cells_free=4_096)
            for job in jobs:
                self.claimed.append(job)
                self._store.settle(self._ending(job), f"worker-{self.model}")

    def _ending(self, job: ClaimedJob) -> Ending:
        texts: list[str] = job.payload["input"]
        words = [len(text.split()) for text in texts]
        code = self.fails_with or (EndCode.CONTEXT_LENGTH_EXCEEDED if max(words) > self.n_ctx else "")
        if code:
            return Ending(job.id, job.token, Outcome.FAILED, code=code, message="it is too long")
        usage = Usage(sum(words), 0, 1, 1, 1, 1)
        return Ending(job.id, job.token, Outcome.SUCCEEDED, "stop", usage=usage, extra=self._results(job, texts))

    def _results(self, job: ClaimedJob, texts: list[str]) -> dict[str, Any]:
        """Return the fields of a job's answer."""
        del job  # a text has the same vector in every job
        vectors = [base64.b64encode(array("f", word_vector(text, self.width)).tobytes()).decode() for text in texts]
        return {"embeddings": vectors}


class Ranker(Embedder):
    """A worker of a model that ranks documents: a score is the share of the document's words that the query has."""

    def __init__(self, store: Store, *, model: str = "ranker") -> None:
        super().__init__(store, model=model)

    def _facts(self) -> dict[str, Any]:
        return {"pooling": "rank", "n_ctx": self.n_ctx, "counts_words": "true"}

    def _results(self, job: ClaimedJob, texts: list[str]) -> dict[str, Any]:
        wanted = set(job.payload["query"].lower().split())
        return {"scores": [sum(word in wanted for word in text.lower().split()) / len(text.split()) for text in texts]}

"""Declares the process metrics, which the processes of a door count in their own memory."""

from shared.metrics.spec import MetricSpec

#: Metrics that the processes of a door (HTTP or gate) count; prometheus-client keeps them (web/http/process_metrics.py,
#: web/gate/server.py).
HTTP_REQUESTS = MetricSpec(
    "penstock_http_requests", "counter", ("route", "method", "status"), "HTTP requests that were answered"
)
HTTP_SECONDS = MetricSpec(
    "penstock_http_request_seconds", "histogram", ("route", "method"), "time from a request to the start of its answer"
)
SCRIPT_SECONDS = MetricSpec(
    "penstock_store_script_seconds", "histogram", ("script",), "time of one round trip to the store, by script"
)
REFUSED_WITHOUT_STORE = MetricSpec(
    "penstock_refused_without_store", "counter", (), "yields that were sent because the store did not answer"
)
FAILED_KEYS = MetricSpec(
    "penstock_failed_keys",
    "counter",
    ("code", "limited"),
    "keys that were not valid, by the error code for such keys; limited is yes if the address had sent too many before",
)
FOLLOWED_JOBS = MetricSpec(
    "penstock_followed_jobs", "gauge", (), "jobs that clients follow or wait for, added up over the door's processes"
)
HTTP_CONNECTIONS = MetricSpec("penstock_http_connections", "gauge", (), "open connections of the HTTP processes")
TURNED_AWAY = MetricSpec(
    "penstock_http_turned_away",
    "counter",
    ("bound",),
    "connections and requests that would have exceeded a bound of an HTTP process",
)
IGNORED_FIELDS = MetricSpec(
    "penstock_http_ignored_fields",
    "counter",
    ("route", "field"),
    "fields of requests that were accepted although they have no effect here",
)
RETRIEVAL_SECONDS = MetricSpec(
    "penstock_retrieval_seconds",
    "histogram",
    ("source",),
    "time of the search for a request's passages, by where they came from: search, cache, cached (of an earlier "
    "version, or in place of a search that was not possible), words, vector or none",
)
RETRIEVAL_PASSAGES = MetricSpec("penstock_retrieval_passages", "counter", (), "passages that were found for requests")
RETRIEVAL_FALLBACKS = MetricSpec(
    "penstock_retrieval_fallbacks",
    "counter",
    ("source", "why"),
    "requests whose passages are not those of a whole search, by the source that took its place, and why",
)
FILE_LOADS = MetricSpec(
    "penstock_vector_store_loads",
    "counter",
    ("result",),
    "loads of files of vector stores that ended in this process: completed, given_back (to wait for a worker, a place "
    "or the database), or failed with server_error, unsupported_file or invalid_file",
)
PASSAGE_CACHE = MetricSpec(
    "penstock_passage_cache", "counter", ("result",), "requests whose passages were in the cache (hit) or not (miss)"
)
PASSAGE_CACHE_BYTES = MetricSpec(
    "penstock_passage_cache_stored_bytes", "counter", (), "bytes of passages that were stored in the cache"
)
SEMANTIC_CACHE = MetricSpec(
    "penstock_semantic_cache",
    "counter",
    ("result",),
    "requests that the semantic cache answered (hit), refused by its guard (guarded), had no answer for (miss), or "
    "could not look up in time (away)",
)
SEMANTIC_CACHE_SECONDS = MetricSpec(
    "penstock_semantic_cache_seconds", "histogram", (), "time of a look-up in the semantic cache"
)
SEMANTIC_CACHE_BYTES = MetricSpec(
    "penstock_semantic_cache_stored_bytes", "counter", (), "bytes of answers that were stored in the semantic cache"
)
ALERTS = MetricSpec(
    "penstock_alerts",
    "counter",
    ("result",),
    "messages with alerts that this process has sent, by how that ended: delivered, or as a webhook's last_result",
)
SPILLS = MetricSpec(
    "penstock_spilled_jobs",
    "counter",
    ("reason",),
    "jobs that a tenant's next cell admitted, by the reason for which the first one did not",
)
GATE_FRAMES = MetricSpec("penstock_gate_frames", "counter", ("status",), "frames that the TCP gate sent")
GATE_CONNECTIONS = MetricSpec("penstock_gate_connections", "gauge", (), "open connections of the TCP gate")
GATE_REFUSED_CONNECTIONS = MetricSpec(
    "penstock_gate_refused_connections",
    "counter",
    ("bound",),
    "connections that the TCP gate refused, by the setting whose bound was reached",
)
BUILD_INFO = MetricSpec(
    "penstock_build_info",
    "gauge",
    ("version", "python"),
    "constant 1; the labels are the versions of Penstock and Python",
)
PROCESS: tuple[MetricSpec, ...] = (
    HTTP_REQUESTS,
    HTTP_SECONDS,
    SCRIPT_SECONDS,
    REFUSED_WITHOUT_STORE,
    FAILED_KEYS,
    FOLLOWED_JOBS,
    HTTP_CONNECTIONS,
    TURNED_AWAY,
    IGNORED_FIELDS,
    RETRIEVAL_SECONDS,
    RETRIEVAL_PASSAGES,
    RETRIEVAL_FALLBACKS,
    FILE_LOADS,
    PASSAGE_CACHE,
    PASSAGE_CACHE_BYTES,
    SEMANTIC_CACHE,
    SEMANTIC_CACHE_SECONDS,
    SEMANTIC_CACHE_BYTES,
    ALERTS,
    SPILLS,
    GATE_FRAMES,
    GATE_CONNECTIONS,
    GATE_REFUSED_CONNECTIONS,
    BUILD_INFO,
)

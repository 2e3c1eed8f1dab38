"""All names that occur in traces: those of spans and of their attributes.

OpenTelemetry's conventions for generative AI still change. Only this file has to follow them.
"""

from collections.abc import Mapping
from enum import StrEnum


class SpanName(StrEnum):
    """The spans of a job, in their order in time."""

    #: In the door: from the head of a POST under /v1/ until its answer was sent. The others are inside it or follow it.
    REQUEST = "penstock.request"
    #: In the door: one offer of a job, with the verdict.
    ADMISSION = "penstock.admission"
    #: From the job's admission, or from when it was given back, until a worker claimed it.
    QUEUE = "penstock.queue"
    #: In a worker: from the claim until the worker gave the job up, with the next three inside.
    ATTEMPT = "penstock.attempt"
    PREFILL = "penstock.prefill"
    DECODE = "penstock.decode"
    #: From the end of the job in the engine until the store confirmed it.
    DELIVERY = "penstock.delivery"


class Attribute(StrEnum):
    """The attributes of spans. No attribute holds a prompt, an answer or a key."""

    TENANT = "penstock.tenant"
    JOB = "penstock.job.id"
    VERDICT = "penstock.verdict"
    REASON = "penstock.refusal.reason"
    RETRY_HINT_MS = "penstock.retry_hint_ms"
    #: The number of the attempt, from 1.
    ATTEMPT = "penstock.attempt"
    WORKER = "penstock.worker"
    OUTCOME = "penstock.outcome"
    CACHED_TOKENS = "penstock.cached_tokens"
    MODEL = "gen_ai.request.model"
    PROMPT_TOKENS = "gen_ai.usage.input_tokens"
    COMPLETION_TOKENS = "gen_ai.usage.output_tokens"
    METHOD = "http.request.method"
    ROUTE = "http.route"
    STATUS = "http.response.status_code"
    #: Why a span failed: an error code.
    ERROR = "error.type"


#: The attributes of a span. Those that are None are left out.
Attributes = Mapping[Attribute, str | int | None]
NO_ATTRIBUTES: Attributes = {}

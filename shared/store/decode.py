"""Decodes the flat answers of the scripts into the types of shared/store/replies.py and shared/jobs/job.py."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shared import schema
from shared.jobs import answer_ids
from shared.jobs.job import ClaimedJob, JobView, Usage
from shared.jobs.job_history import Change
from shared.jobs.outcomes import Outcome, Refusal, Refused
from shared.jobs.request import PREFIX, json_object, shown_fields
from shared.jobs.routing import Routed
from shared.jobs.states import JobState
from shared.store.replies import (
    ClaimReply,
    Overview,
    PoolReason,
    PoolView,
    SettleAnswer,
    Settled,
    Snapshot,
    Swept,
    TenantView,
    WorkerView,
)

#: A worker whose last heartbeat is older than this is not live. shared/lua/lib/base/clock.lua has the same value.
LIVE_MS = 5_000

#: The largest value of PENSTOCK_MAX_INFLIGHT.
_MAX_INFLIGHT = 10_000_000

#: The fields of a job's record that the script admit answers with, in order, and those that are the caller's arguments.
_FRESH = ("model", "prompt_tokens", "max_tokens", "patience_ms", "eta_ms", "routed", "private", "fewer")
_SAME = ("tenant", "patience_from", "poll_grace_ms", "priority", "metadata", "form", "callback_url")
_WORKER_FIELDS = {"model", "slug", "slots", "slots_busy", "cells", "cells_free", "draining", "beat_ms"}
_CLAIM_INTERNAL = {"claim_id", "claim_ids", "claim_resume", "claim_pause", "asks_by_ms", "crowded", "interactive_ms"}
_WORKER_INTERNAL = _CLAIM_INTERNAL | {"suspect", "apart", "drain_asked", "since_ms"}


def text(raw: Any) -> str:
    """Decode the bytes of a reply. Bytes that are not valid UTF-8, written by other programs, become U+FFFD."""
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def pairs(flat: list[Any]) -> dict[str, str]:
    """Convert a flat list (field, value, field, value, …) into a dict."""
    return {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat) - 1, 2)}


def refused(answer: list[Any]) -> Refused:
    """Decode the values that describe a refusal in the answers of the scripts admit and quote."""
    reason, limit, value, maximum, inflight, max_inflight, hint_ms, hopeless, own_ms, *retry = answer
    too_long, retry_ms, window_ms, resets_ms, *shared = retry
    return Refused(
        Refusal(text(reason)),
        text(limit),
        value,
        maximum,
        inflight,
        max_inflight,
        hint_ms,
        hopeless=hopeless == 1,
        answer_ms=None if own_ms < 0 else own_ms,
        too_long=too_long == 1,
        retry_ms=retry_ms,
        return_window_ms=window_ms,
        resets_ms=resets_ms,
        shared_hints_ms=(shared[0], shared[1]) if shared and shared[1] else None,
    )


def settled(word: str, rest: list[Any]) -> Settled:
    return Settled(SettleAnswer(word), Outcome(text(rest[0])) if rest else None)


def swept(answer: list[Any]) -> Swept:
    repairs, next_start, sets_agree, active_sets, notices = answer
    return Swept(
        repairs,
        None if next_start < 0 else next_start,
        sets_agree == 1,
        [text(name) for name in active_sets],
        [text(notice) for notice in notices],
    )


def claimed(entry: list[Any], token: str) -> ClaimedJob:
    """Decode one job of the answer of the claim script.

    A payload that is missing or not a JSON object becomes {}; the worker then settles the job as failed.
    """
    try:
        payload = json.loads(entry[1])
    except (ValueError, RecursionError):
        payload = {}
    start_in_ms = int(entry[4])
    return ClaimedJob(
        id=text(entry[0]),
        token=token,
        payload=payload if isinstance(payload, dict) else {},
        attempt=int(entry[2]),
        deadline_in_ms=int(entry[3]),
        start_in_ms=None if start_in_ms == -1 else start_in_ms,
        tenant=text(entry[5]),
        model=text(entry[6]),
        prompt_tokens=int(entry[7]),
        max_tokens=int(entry[8]),
        cancel_requested=text(entry[9]) != "",
        traceparent=text(entry[10]),
        answer=answer_ids.unpack(entry[11]),
        key_label=text(entry[12]),
        waited_ms=int(entry[13]),
        is_followed=text(entry[14]) != "0" if entry[14] else None,
    )


def exchange(answer: list[Any], token: str) -> ClaimReply:
    started, resume, pause, lost, ask_in_ms = answer
    return ClaimReply(
        [claimed(entry, token) for entry in started],
        [text(job_id) for job_id in resume],
        [text(job_id) for job_id in pause],
        [text(job_id) for job_id in lost],
        ask_in_ms,
    )


def job_view(now_ms: int, position: int, result: Any, record: dict[str, str], job_id: str, ahead: int = -1) -> JobView:
    """Build a JobView from a job's hash and its result. Invalid numbers become 0, and times None."""

    def field(name: str) -> str:
        return record.get(PREFIX + name, "")

    def time_ms(name: str) -> int | None:
        return int(value) if (value := field(name)).isdecimal() and len(value) < 16 else None

    def number(name: str) -> int:
        return time_ms(name) or 0

    body = json_object(result)
    return JobView(
        id=job_id,
        tenant=field("tenant"),
        model=field("model"),
        state=JobState(field("state")),
        admitted_ms=number("admitted_ms"),
        deadline_at_ms=number("deadline_ms"),
        started_ms=time_ms("started_ms"),
        ended_ms=time_ms("ended_ms"),
        deadline_ms=number("patience_ms"),
        deadline_source=field("patience_from"),
        attempts=number("attempts"),
        cancel_requested=field("cancel") != "",
        prompt_tokens=number("prompt_tokens"),
        max_tokens=number("max_tokens"),
        finish_reason=field("finish_reason"),
        code=field("code"),
        stage=field("stage"),
        worker=field("worker"),
        text=body.pop("text", None),
        usage=_usage(body.pop("usage", None)),
        message=body.pop("message", ""),
        position=position or None,
        ahead_tokens=None if ahead < 0 else ahead,
        now_ms=now_ms,
        first_claim_ms=time_ms("first_claim_ms"),
        poll_grace_ms=number("poll_grace_ms"),
        head_ms=time_ms("head_ms"),
        paused_ms=number("paused_ms"),
        paused_since_ms=time_ms("paused_since_ms"),
        requeued_ms=number("requeued_ms"),
        # The time of the claim is removed when the job goes back to its queue.
        requeued_since_ms=time_ms("requeued_at_ms") if time_ms("started_ms") is None else None,
        eta_at_ms=time_ms("eta_ms"),
        degraded=_changes(number("max_tokens"), number("cut_tokens"), number("cut_tier")),
        fewer=field("fewer"),
        routed=Routed(field("model"), field("routed")) if field("routed") else None,
        priority={"1": 1, "-1": -1}.get(field("priority"), 0),
        callback_url=field("callback_url"),
        webhook=field("webhook"),
        key_label=field("key_label"),
        private=field("private") == "1",
        is_followed=field("followed") != "0",
        form=json_object(field("form")),
        shown=shown_fields(record),
        extra=body,
    )


def admitted_view(call: Mapping[str, Any], position: int, fresh: list[Any]) -> JobView:
    """Build the view of a job from the arguments of the call that admitted it, and what the answer adds to them."""
    now_ms, ahead_tokens, *values = fresh
    record = pairs(call["kept"])
    added = dict(zip(_FRESH, map(text, values), strict=True)) | {"state": "queued", "admitted_ms": str(now_ms)}
    added["deadline_ms"] = str(now_ms + int(added["patience_ms"]))
    # A job that enters its queue as the head waits for nothing but its tenant's turn from now on.
    added["head_ms"] = str(now_ms) if position == 1 else ""
    added |= {name: str(call[name]) for name in _SAME}
    if added["fewer"]:
        added["form"] = str(call["fewer_form"])
    record |= {PREFIX + name: value for name, value in added.items()}
    return job_view(now_ms, position, None, record, str(call["id"]), ahead_tokens)


def _changes(max_tokens: int, cut_to: int, tier: int) -> tuple[Change, ...]:
    return (Change("max_tokens", max_tokens, cut_to, f"tier {tier}"),) if cut_to else ()


def snapshot(answer: list[Any]) -> Snapshot:
    now_ms, inflight, waiting, running, raw_config, stats, tenants, workers, models, *rest = answer
    live_models, live_workers, capacity_wtps, ahead_ms, loads, pools = rest
    config = pairs(raw_config)
    live_slots = integer(config.get("live_slots"))
    return Snapshot(
        now_ms=now_ms,
        inflight=inflight,
        max_inflight=_max_inflight(config.get("max_inflight"), live_slots, integer(config.get("live_places"))),
        waiting=waiting,
        running=running,
        stats={name: integer(value) for name, value in pairs(stats).items()},
        tenants=[_tenant(entry, config, live_slots) for entry in tenants],
        workers=[_worker(entry, now_ms) for entry in workers],
        models=[text(name) for name in models],
        draining=config.get("draining") == "1" or schema.is_outdated(config.get("schema_oldest")),
        tiers={model: int(tier) for model, tier in pairs(live_models).items() if tier != "-1"},
        live_models=list(pairs(live_models)),
        live_workers=live_workers,
        live_slots=live_slots,
        capacity_wtps=float(capacity_wtps),
        ahead_ms=ahead_ms,
        backlogs_s={text(model): float(seconds) for model, seconds, _ in loads if float(seconds) >= 0},
        busy_ratios={text(model): float(ratio) for model, _, ratio in loads},
        pools={pool.model: pool for pool in map(_pool, pools)},
    )


def overview(answer: list[Any]) -> Overview:
    inflight, set_bound, workers, raw_slots, places, draining, none_lasts = answer
    slots = integer(text(raw_slots))
    max_inflight = _max_inflight(text(set_bound), slots, integer(text(places)))
    return Overview(inflight, max_inflight, workers, slots, draining=draining == 1, workers_restart=none_lasts == 1)


def _max_inflight(setting: str | None, live_slots: int, live_places: int) -> int:
    return _bound(setting, max(64, 4 * live_slots, min(_MAX_INFLIGHT, live_places)))


def _tenant(entry: list[Any], config: dict[str, str], live_slots: int) -> TenantView:
    name, oldest_ms, fields = text(entry[0]), int(entry[1]), pairs(entry[2])
    return TenantView(
        name=name,
        weight=(integer(fields.get("policy_weight_milli")) or 1000) / 1000,
        waiting=integer(fields.get("waiting")),
        waiting_tokens=integer(fields.get("waiting_tokens")),
        max_waiting=_set_bound(fields.get("policy_max_waiting"))
        or _bound(config.get("max_queue_size"), max(16, 2 * live_slots)),
        max_waiting_tokens=_set_bound(fields.get("policy_max_waiting_tokens"))
        or _set_bound(config.get("max_queue_tokens")),
        running=integer(fields.get("running")),
        oldest_age_ms=None if oldest_ms < 0 else oldest_ms,
        group=fields.get("policy_group"),
        queues=frozenset(text(slug) for slug in entry[3]),
    )


def _pool(entry: list[Any]) -> PoolView:
    model, heartbeat_age_ms, live_workers, reason, waiting, running, slots, oldest_ms, *rest = entry
    prompt_price, answer_price, load_failures = (max(0, integer(text(number))) for number in rest[:3])
    word = text(reason)
    return PoolView(
        model=text(model),
        heartbeat_age_ms=heartbeat_age_ms,
        live_workers=live_workers,
        reason=PoolReason(word) if word else None,
        waiting=integer(text(waiting)),
        running=integer(text(running)),
        # The sum still has the slots of workers that died a few seconds ago.
        slots=integer(text(slots)) if live_workers else 0,
        oldest_age_ms=None if oldest_ms < 0 else oldest_ms,
        prompt_price_micro=prompt_price,
        answer_price_micro=answer_price,
        load_failures=load_failures,
        load_retry_in_ms=int(rest[3]),
        load_error=text(rest[4]),
    )


def _worker(entry: list[Any], now_ms: int) -> WorkerView:
    fields = pairs(entry[1])
    age_ms = now_ms - integer(fields.get("beat_ms"))
    return WorkerView(
        name=text(entry[0]),
        model=fields.get("model", ""),
        live=age_ms <= LIVE_MS,
        heartbeat_age_ms=age_ms,
        slots=integer(fields.get("slots")),
        slots_busy=integer(fields.get("slots_busy")),
        cells=integer(fields.get("cells")),
        cells_free=integer(fields.get("cells_free")),
        draining=fields.get("draining") == "1",
        facts={name: value for name, value in fields.items() if name not in _WORKER_FIELDS | _WORKER_INTERNAL},
    )


def _usage(raw: Any) -> Usage | None:
    """Build a Usage from the known counts. Unknown counts, which a newer worker may have written, are ignored."""
    known = {row.name for row in fields(Usage)}
    counts = {name: value for name, value in raw.items() if name in known} if isinstance(raw, dict) else {}
    return Usage(**counts) if counts else None


def _bound(value: str | None, auto_value: int) -> int:
    bound = _set_bound(value)
    return auto_value if bound is None else bound


def _set_bound(value: str | None) -> int | None:
    """Return a bound that an operator has set; None if no bound is set, or if the value is not a valid bound."""
    return int(value) if value and is_integer(value) and int(value) >= 1 else None


def is_integer(value: str) -> bool:
    """Return whether `value` is an integer; another program may have written something else into the field."""
    return re.fullmatch(r"-?[0-9]{1,19}", value) is not None


def integer(value: str | None) -> int:
    """Return the integer in a field. Return 0 if the field is missing or holds something else."""
    # The first check is the quicker one, which matters for the more than ten thousand fields of the statistics.
    return int(value) if value and ((value.isdecimal() and len(value) < 19) or is_integer(value)) else 0

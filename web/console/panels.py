"""Render the panels of the console from its templates; every value is inserted as text, never as markup."""

import hashlib
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup, escape

from shared.durations import utc_time
from shared.jobs.job import JobView
from shared.jobs.pool_terms import format_amount
from shared.store.keys import is_tenant_name
from shared.store_fault import StoreFault
from shared.views.time_parts import time_parts, tokens_per_s
from shared.views.timeline import TimelineStep, timeline
from web.anthropic.message_answers import stop_fields
from web.api.candidates import best_view
from web.api.citations import Retrieved
from web.api.job_json import has_ended, job_json
from web.console.board import MAX_LINES, Board, NoBoard, RecentEvents
from web.openai.chat_answers import finish_reason
from web.openai.responses_answers import end_word

#: The panels of the console that change with each pass.
PANELS = ("state", "totals", "models", "tenants", "groups", "workers", "running", "refusals", "failures")
#: Shown in place of an unknown value.
UNKNOWN = "\N{EN DASH}"
#: The panels that change while there is no board. The others stay as they were last.
_UNKNOWN_PANELS = ("state",)


def install(environment: Environment) -> None:
    """Add the filters that the templates of the console use."""
    environment.filters |= {
        "dom_id": dom_id,
        "duration": duration,
        "percent": percent,
        "rate": rate,
        "clock": clock,
        "moment": moment,
        "minute": minute,
        "moment_ms": moment_ms,
        "amount": format_amount,
        "with_commands": with_commands,
        "model_link": model_link,
        "tenant_link": tenant_link,
    }


def render_panels(environment: Environment, board: Board | NoBoard, events: RecentEvents) -> dict[str, str]:
    """Return the HTML of each panel. Without a board, only the state is rendered, which gives the reason."""
    names = PANELS if isinstance(board, Board) else _UNKNOWN_PANELS
    values: dict[str, Any] = {
        "board": board,
        "has_figures": isinstance(board, Board),
        "events": events,
        "most": MAX_LINES,
    }
    return {name: environment.get_template(f"console/{name}.html").render(values) for name in names}


def render_fault(environment: Environment, fault: StoreFault) -> str:
    """Return the HTML of the state while the store cannot serve, for a page whose figures are the last ones."""
    return environment.get_template("console/state.html").render(board=NoBoard(fault), has_figures=False)


def render_template_of(environment: Environment, name: str, /, **values: Any) -> str:
    """Return the HTML of a template of the console, also without a request, as in a stream."""
    return environment.get_template(f"console/{name}.html").render(values)


def render_job(environment: Environment, view: JobView) -> str:
    """Return the HTML of a job's facts, its timeline and its time. It contains no prompt, answer or metadata."""
    reason = client_finish_reason(view)
    job = job_json(view) | {"finish_reason": reason}
    steps = timeline(job, view.now_ms)
    until_ms = max(((view.ended_ms or view.now_ms) - view.admitted_ms), 1)
    retrieved = Retrieved.read(view)
    parts = time_parts(view, retrieval_ms=0 if retrieved is None else retrieved.took_ms)
    return environment.get_template("console/job_facts.html").render(
        job=job,
        view=view,
        has_ended=has_ended(view),
        finish_reason=reason,
        speeds=speeds(view),
        steps=[(step, _bar(step, until_ms)) for step in steps],
        parts=list(zip(parts, _bars([part.ms for part in parts]), strict=True)),
        total_ms=sum(part.ms for part in parts),
    )


def client_finish_reason(view: JobView) -> str:
    """Return why the answer of a job ended, in the words of the API that its client used; "" if it has not ended."""
    best = best_view(view)
    if best.finish_reason and view.form.get("api") == "responses":
        return end_word(best)
    if not best.finish_reason or best.text is None:
        return best.finish_reason
    # Only the form of a request to Anthropic's API has this field.
    return str(stop_fields(best)["stop_reason"]) if "max_tokens" in view.form else finish_reason(best)


def speeds(view: JobView) -> tuple[float | None, float | None]:
    """Return how many tokens of the prompt were computed a second, and how many of the answer were generated.

    They are None if they are not known: of an answer that several attempts have made, only the last one's time is.
    """
    usage = view.usage
    if usage is None or view.attempts > 1:
        return None, None
    computed = usage.read_tokens - usage.cached_tokens
    # The first token ends the prefill.
    return tokens_per_s(computed, usage.prefill_ms), tokens_per_s(usage.completion_tokens - 1, usage.decode_ms)


def _bars(sizes_ms: list[int]) -> list[tuple[float, float]]:
    """Return where the bar of each part begins and how wide it is, in percent; each continues the one before."""
    total_ms, begin_ms, bars = max(1, sum(sizes_ms)), 0, []
    for size_ms in sizes_ms:
        bars.append((round(100 * begin_ms / total_ms, 3), round(100 * size_ms / total_ms, 3)))
        begin_ms += size_ms
    return bars


def _bar(step: TimelineStep, until_ms: int) -> tuple[float, float] | None:
    """Return where the bar of a stage begins and how wide it is, in percent; None for a stage without a time."""
    if step.at_ms is None:
        return None
    begin = 100 * min(1.0, step.at_ms / until_ms)
    return round(begin, 2), round(min(100 - begin, 100 * (step.took_ms or 0) / until_ms), 2)


def dom_id(name: str) -> str:
    """Return a text for the id of an element that belongs to a name, which may contain any characters."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def with_commands(text: str) -> Markup:
    """Return the HTML of a text in which commands are between backquotes."""
    parts = [
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part) for i, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)


def model_link(name: str, place: str = "") -> Markup:
    """Return a link to the page of a model. `place` distinguishes it from others to the same model on a page.

    With an id, a link keeps the focus when its panel is replaced.
    """
    return _link(f"/console/model?name={quote(name, safe='')}", "model", name, place)


def tenant_link(name: str, place: str = "") -> Markup:
    """Return a link to the page of a tenant, as `model_link` does; only the text if no tenant can have the name."""
    if not is_tenant_name(name):
        return escape(name)
    return _link(f"/console/tenants/{quote(name, safe='')}", "tenant", name, place)


def _link(path: str, kind: str, name: str, place: str) -> Markup:
    element = f"{kind}-{dom_id(f'{place} {name}')}"
    return Markup('<a href="{}" id="{}">{}</a>').format(path, element, name)


def duration(ms: float | None) -> str:
    """Return a time in ms as a person reads it, such as `350 ms`, `2.1 s` or `3 min`; a dash for None."""
    if ms is None:
        return UNKNOWN
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"


def clock(at_ms: int) -> str:
    """Return the time of day of a time in ms since the epoch, in UTC."""
    return utc_time(at_ms).strftime("%H:%M:%S UTC")


def moment(at_ms: int) -> str:
    """Return the date and the time of a time in ms since the epoch, in UTC, without the zone."""
    return utc_time(at_ms).strftime("%Y-%m-%d %H:%M:%S")


def minute(at_ms: int) -> str:
    """Return the date and the minute of a time in ms since the epoch, in UTC."""
    return utc_time(at_ms).strftime("%Y-%m-%d %H:%M UTC")


def moment_ms(at_ms: int) -> str:
    """Return the date and the time of a time in ms since the epoch, in UTC and with its ms."""
    return f"{moment(at_ms)}.{at_ms % 1000:03} UTC"


def percent(part: float | None) -> str:
    """Return a part of 1 in percent; a dash for None."""
    return UNKNOWN if part is None else f"{100 * part:.0f} %"


def rate(value: float | None) -> str:
    """Return a rate with three digits or so; a dash for None."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"

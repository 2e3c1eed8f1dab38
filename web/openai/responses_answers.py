"""Convert jobs to the response objects of `/v1/responses`, and requests to the items of an input; pure functions."""

import re
from collections import Counter
from typing import Any

from shared.answer_parts import END, Call, Part, ordered_parts
from shared.jobs.job import JobView
from shared.jobs.outcomes import EndCode, FinishReason
from shared.jobs.states import JobState
from web.api.candidates import job_logprobs
from web.api.file_search import NO_TEXTS, SearchedFiles, SearchTexts
from web.api.job_json import degraded_json, error_json, has_ended, queue_facts, webhook_state
from web.openai.chat_answers import REQUEST_ERRORS, call_id, has_parts, usage
from web.openai.file_search_answers import Annotator, annotations_of, search_json
from web.openai.response_tools import Namespaces

#: The prefixes of the ids of a response, of its reasoning, of its messages and of its calls. The job's id follows
#: the prefix, so that a client's log can be matched with the door's log.
PREFIX, REASONING_PREFIX, MESSAGE_PREFIX, CALL_PREFIX = "resp_", "rs_", "msg_", "fc_"

_STATUS = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.EXPIRED: "failed",
    JobState.CANCELED: "cancelled",
}
#: Why an answer was cut → the word of OpenAI's API for it.
_CUT: dict[str, str] = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}


def is_response(view: JobView) -> bool:
    """Return whether the job was created by `POST /v1/responses`, and can be read as a response."""
    return view.form.get("api") == "responses" and view.form.get("store") is not False


def namespaces_in(view: JobView) -> Namespaces:
    """Return the functions of the job's request that are in namespaces."""
    namespaces: Namespaces = view.form.get("namespaces", {})
    return namespaces


def status_of(view: JobView) -> str:
    """Return the job's status in OpenAI's terms. It is `cancelled` as soon as a cancel of the job was requested."""
    if view.cancel_requested and not has_ended(view):
        return "cancelled"
    if view.state is JobState.SUCCEEDED and view.finish_reason in _CUT:
        return "incomplete"
    return _STATUS[view.state]


def end_word(view: JobView) -> str:
    """Return how a response ended, as its client sees it: why it was cut or, if it was not, its status."""
    status = status_of(view)
    return _CUT[view.finish_reason] if status == "incomplete" else status


def annotator_of(view: JobView) -> Annotator | None:
    """Return what finds the annotations of the answer; None if the request did not search for files."""
    searched = SearchedFiles.read(view)
    if searched is None:
        return None
    return Annotator(searched.files, most_at_once=searched.admitted, reads_marks=view.form.get("format") == "text")


def response_json(view: JobView, texts: SearchTexts = NO_TEXTS) -> dict[str, Any]:
    """Return the current response object, with the texts of its search for files.

    It lacks the texts of the request, because Penstock does not keep them.
    """
    status = status_of(view)
    error = _error(view)
    return (
        _base_fields(view, status)
        | {
            "completed_at": (view.ended_ms or 0) // 1000 if view.state is JobState.SUCCEEDED else None,
            "error": error,
            "incomplete_details": {"reason": end_word(view)} if status == "incomplete" else None,
            "output": _output(view, status, texts),
            "usage": _usage(view) if has_ended(view) else None,
            "queue": queue_facts(view),
        }
        | degraded_json(view)
        | webhook_state(view.callback_url, view.webhook)
    )


def early_response_json(view: JobView, status: str) -> dict[str, Any]:
    """Return the response object with an earlier status, `queued` or `in_progress`, and without output."""
    return _base_fields(view, status) | {"queue": queue_facts(view)}


def message_json(
    job_id: str,
    text: str | None,
    status: str,
    logprobs: list[dict[str, Any]] | None = None,
    *,
    index: int = 0,
    annotations: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the item for the model's message. If `text` is None, it has no content yet.

    If the answer has several messages, this is the one with the number `index`.
    """
    content = [] if text is None else [part_json(text, logprobs, annotations)]
    return {
        "id": MESSAGE_PREFIX + _numbered(job_id, index),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def part_json(
    text: str, logprobs: list[dict[str, Any]] | None = None, annotations: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the only part of the message's content."""
    return {"type": "output_text", "text": text, "annotations": annotations or [], "logprobs": logprobs or []}


def reasoning_json(job_id: str, text: str | None, status: str, *, index: int = 0) -> dict[str, Any]:
    """Return the item for the model's reasoning. If `text` is None, it has no content yet.

    The text is what the model wrote, so it is content and no summary. If the answer has several such items, this is the
    one with the number `index`.
    """
    content = [] if text is None else [reasoning_part_json(text)]
    item_id = REASONING_PREFIX + _numbered(job_id, index)
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": status}


def reasoning_part_json(text: str) -> dict[str, Any]:
    """Return the only part of the reasoning's content."""
    return {"type": "reasoning_text", "text": text}


def call_json(job_id: str, index: int, call: Call, status: str, namespaces: Namespaces | None = None) -> dict[str, Any]:
    """Return the item for one call of a tool. `namespaces` has the functions of the request that are in namespaces."""
    namespace, name = (namespaces or {}).get(call.name, (None, call.name))
    item = {
        "id": f"{CALL_PREFIX}{job_id}_{index}",
        "type": "function_call",
        "call_id": call_id(job_id, index),
        "name": name,
        "arguments": call.arguments,
        "status": status,
    }
    return item if namespace is None else item | {"namespace": namespace}


def _numbered(job_id: str, index: int) -> str:
    return f"{job_id}_{index}" if index else job_id


def _base_fields(view: JobView, status: str) -> dict[str, Any]:
    form = view.form
    return {
        "id": PREFIX + view.id,
        "object": "response",
        "created_at": view.admitted_ms // 1000,
        "completed_at": None,
        "status": status,
        "background": form.get("background", False),
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": form.get("max_output_tokens"),
        "metadata": view.metadata,
        "model": view.model,
        "output": [],
        "parallel_tool_calls": form.get("parallel", True),
        "previous_response_id": form.get("previous"),
        "reasoning": {"effort": form.get("effort"), "summary": None},
        "temperature": form.get("temperature"),
        "text": _text(form),
        "tool_choice": form.get("tool_choice", "auto"),
        "tools": form.get("tools", []),
        "top_logprobs": form.get("top_logprobs"),
        "top_p": form.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }


def _text(form: dict[str, Any]) -> dict[str, Any] | None:
    """Return the format of the answer; None if its schema was too long to be kept with the job."""
    kind, schema = form.get("format", "text"), form.get("schema")
    if kind == "json_schema" and not isinstance(schema, dict):
        return None
    return {"format": {"type": kind} | (schema or {})}


def _output(view: JobView, status: str, texts: SearchTexts) -> list[dict[str, Any]]:
    if not has_ended(view):
        return []
    searched, answer = SearchedFiles.read(view), _answer_items(view, status)
    # A job that no worker began has shown nothing.
    shows_search = searched is not None and (bool(answer) or view.started_ms is not None)
    return [search_json(view.id, searched, texts), *answer] if searched is not None and shows_search else answer


def _answer_items(view: JobView, status: str) -> list[dict[str, Any]]:
    if view.text is None or (not view.text and view.state is not JobState.SUCCEEDED):
        return []
    item_status = "completed" if status == "completed" else "incomplete"
    parts = ordered_parts(view.text) if has_parts(view) else [Part("content", view.text)]
    if len(parts) <= 1 and not any(part.kind != "content" for part in parts):
        text = parts[0].text if parts else ""
        annotator = annotator_of(view)
        cited = [] if annotator is None else annotations_of(annotator, text, is_last=True)
        return [message_json(view.id, text, item_status, job_logprobs(view), annotations=cited)]
    # A call that has its end is complete, even if nothing more could be written after it.
    last = "completed" if parts[-1].kind == "call" and view.text.endswith(END) else item_status
    items, counts, annotator = [], Counter[str](), annotator_of(view)
    for i, part in enumerate(parts):
        is_last = i == len(parts) - 1
        item = _item(view, part, counts[part.kind], last if is_last else "completed")
        if annotator is not None and part.kind == "content":
            item["content"][0]["annotations"] = annotations_of(annotator, part.text, is_last=is_last)
        items.append(item)
        counts[part.kind] += 1
    return items


def _item(view: JobView, part: Part, index: int, status: str) -> dict[str, Any]:
    """Return the item for a part that is not the only one: logprobs are those of the whole text, so it has none."""
    if part.kind == "call":
        return call_json(view.id, index, Call(part.text, part.arguments), status, namespaces_in(view))
    if part.kind == "reasoning":
        return reasoning_json(view.id, part.text, status, index=index)
    return message_json(view.id, part.text, status, index=index)


def _error(view: JobView) -> dict[str, Any] | None:
    error = error_json(view)
    if error is None or error["code"] == EndCode.CANCELED:
        return None
    # OpenAI's code for an error that the request itself caused, and for all others.
    code = "invalid_prompt" if error["code"] in REQUEST_ERRORS else "server_error"
    return {"code": code, "message": error["message"], "type": error["code"], "param": view.extra.get("param")}


def _usage(view: JobView) -> dict[str, Any]:
    counts = usage(view)
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"] | {"cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": view.extra.get("reasoning_tokens", 0)},
        "total_tokens": counts["total_tokens"],
    }


#: The prefix of the id of a call's result.
RESULT_PREFIX = "fco_"
#: An id: the kind of the item, the id of its job, and its number. Items of the input have `in` before their number.
_ITEM_ID = re.compile(r"(?:fc|fco|fs|msg|rs)_(?P<job>[A-Za-z0-9_-]{1,128}?)(?P<number>_(?P<input>in)?[0-9]{1,6})?\Z")


def referenced_id(item: Any) -> Any:
    """Return the id in an item of a request that is a reference to another item, otherwise None."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type")
    is_reference = kind == "item_reference" or (kind is None and "id" in item and item.keys() <= {"id", "type"})
    if not is_reference:
        return None
    return "" if item.get("id") is None else item["id"]


def jobs_of(item_id: str) -> list[tuple[str, bool]]:
    """Return the ids of the jobs that may have an item with this id, and whether it is an item of the job's input."""
    found = _ITEM_ID.match(item_id)
    if found is None:
        return []
    if found["number"] is None:
        return [(found["job"], False)]
    # The id of a job may end as that of an item does.
    return [(found["job"], found["input"] is not None), (found["job"] + found["number"], False)]


def input_items(job_id: str, messages: list[dict[str, Any]], namespaces: Namespaces) -> list[dict[str, Any]]:
    """Return the items of a response's input for the messages of its chat."""
    items: list[dict[str, Any]] = []
    for message in messages:
        items += _items(message, namespaces)
    return [item | {"id": f"{item['id']}{job_id}_in{number}"} for number, item in enumerate(items)]


def _items(message: dict[str, Any], namespaces: Namespaces) -> list[dict[str, Any]]:
    """Return the items of one message, with the prefixes of their ids."""
    role, content = message["role"], message.get("content") or ""
    if role == "tool":
        result = {"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": content}
        return [{"id": RESULT_PREFIX} | result | {"status": "completed"}]
    items: list[dict[str, Any]] = []
    thought, calls = message.get("reasoning_content"), message.get("tool_calls") or []
    if thought:
        reasoning = {"type": "reasoning", "summary": [], "content": [reasoning_part_json(thought)]}
        items.append({"id": REASONING_PREFIX} | reasoning | {"status": "completed"})
    if content or not calls:
        items.append({"id": MESSAGE_PREFIX, "type": "message", "role": role} | _said(role, content))
    return items + [{"id": CALL_PREFIX} | _call(call, namespaces) for call in calls]


def _said(role: str, content: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "input_text", "text": content}
    if role == "assistant":
        part = {"type": "output_text", "text": content, "annotations": [], "logprobs": []}
    return {"status": "completed", "content": [part]}


def _call(call: dict[str, Any], namespaces: Namespaces) -> dict[str, Any]:
    function = call["function"]
    namespace, name = namespaces.get(function["name"], (None, function["name"]))
    item = {"type": "function_call", "call_id": call.get("id", ""), "name": name, "arguments": function["arguments"]}
    return item | {"status": "completed"} | ({} if namespace is None else {"namespace": namespace})

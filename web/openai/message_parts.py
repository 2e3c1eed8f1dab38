"""Convert the parts of an answer (shared/answer_parts.py) to the fields of OpenAI's messages; pure functions."""

from collections.abc import Sequence
from typing import Any

from shared.answer_parts import AnswerParts, Delta


def call_id(job_id: str, index: int) -> str:
    """Return the id of a call: the same whether the answer is read whole or as a stream."""
    return f"call_{job_id}_{index}"


def message_fields(parts: AnswerParts, job_id: str) -> dict[str, Any]:
    """Return the fields of a message for these parts. A message that only calls tools has no content."""
    fields: dict[str, Any] = {"content": None if parts.calls and not parts.content else parts.content}
    if parts.reasoning:
        fields[parts.reasoning_field or "reasoning_content"] = parts.reasoning
    if parts.calls:
        fields["tool_calls"] = [
            {
                "id": call.id or call_id(job_id, index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(parts.calls)
        ]
    return fields


def without_old_reasoning(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, without the reasoning before the user's last message.

    Most templates show no such reasoning, which a conversation that the door keeps would have for good.
    """
    last = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=-1)
    return [
        {name: given for name, given in message.items() if at > last or name != "reasoning_content"}
        for at, message in enumerate(messages)
    ]


def delta_fields(delta: Delta, job_id: str) -> dict[str, Any]:
    """Return the `delta` of a chunk for a new piece of an answer."""
    if delta.kind == "content":
        return {"content": delta.text}
    if delta.kind == "reasoning":
        return {delta.source or "reasoning_content": delta.text}
    if delta.kind == "arguments":
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    call = {"index": delta.index, "id": delta.source or call_id(job_id, delta.index), "type": "function"}
    return {"tool_calls": [call | {"function": {"name": delta.text, "arguments": ""}}]}

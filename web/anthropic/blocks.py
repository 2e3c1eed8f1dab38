"""Convert the messages of Anthropic's API, whose content is a list of blocks, to the messages of a chat; no I/O."""

import json
from dataclasses import dataclass, field
from typing import Any

from web.api.body import note_ignored
from web.api.request_schema import MAX_MESSAGES
from web.http.api_errors import invalid, invalid_field
from web.openai.accepted_fields import shown, unsupported
from web.openai.chat_messages import MAX_TOOLS


def read_fields(
    value: Any, known: frozenset[str], where: str, ignored: frozenset[str] = frozenset({"cache_control"})
) -> dict[str, Any]:
    """Return the fields of an object that are not null. Those in `ignored` are left out and noted.

    Raises ApiError for fields that are neither known nor ignored.
    """
    if not isinstance(value, dict):
        raise invalid(where, value, "an object")
    kept = {}
    for name, given in value.items():
        if given is None:
            continue
        if name in ignored:
            note_ignored(name)
            continue
        if name not in known:
            raise unsupported(f"{where}.{shown(name)}", "the field is unknown")
        kept[name] = given
    return kept


def read_text(value: Any, where: str, *, least: int = 0, most: int | None = None) -> str:
    """Return a text without NUL characters, of `least` to `most` characters. Raises ApiError."""
    if not isinstance(value, str):
        raise invalid(where, value, "a text")
    if "\0" in value:
        raise invalid(where, value, "a text without NUL characters (\\u0000)")
    if len(value) < least or (most is not None and len(value) > most):
        raise invalid(where, value, f"a text of {least} to {most} characters")
    return value


#: The longest id and name of a call, as on the chat route.
_MAX_ID, _MAX_NAME = 256, 64
#: The prefix of the text of a result that reports an error. Chats have no field for it.
_ERROR_MARK = "Error: "
_DOCUMENT_FIELDS = frozenset({"context", "source", "title", "type"})
_DOCUMENT_IGNORED = frozenset({"cache_control", "citations"})
#: Between messages of one role that follow each other, which Anthropic's API reads as one, and after a document.
_BETWEEN_MESSAGES = "\n\n"


@dataclass(frozen=True)
class Conversation:
    """The messages of a chat, and the place in the body of the first image or document ("" without one).

    A document that is a text is part of its message's text, and does not count.
    """

    messages: list[dict[str, Any]]
    attachment: str = ""


@dataclass
class _ChatMessage:
    """One message of a chat, of one or several messages of the client."""

    role: str
    texts: list[str]
    #: How the model reasoned in an earlier answer.
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    #: The id of the call whose result this is.
    call_id: str | None = None
    #: The content if it has images or documents.
    parts: list[dict[str, Any]] | None = None

    def takes(self, other: "_ChatMessage") -> bool:
        """Return whether the other message, which follows, is part of this one."""
        same = self.role == other.role and self.role in {"user", "assistant"}
        return same and not self.calls and self.parts is None and other.parts is None

    def as_dict(self) -> dict[str, Any]:
        """Return the message of the chat."""
        content = _BETWEEN_MESSAGES.join(text for text in self.texts if text)
        message: dict[str, Any] = {"role": self.role, "content": content if self.parts is None else self.parts}
        if self.thoughts:
            message["reasoning_content"] = _BETWEEN_MESSAGES.join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message if self.call_id is None else message | {"tool_call_id": self.call_id}


def read_conversation(value: Any) -> Conversation:
    """Return the conversation in the field `messages`. Raises ApiError, which names the place of the fault."""
    if not isinstance(value, list) or not value:
        raise invalid("messages", value, "a list of messages")
    messages: list[_ChatMessage] = []
    attachment = ""
    for i, item in enumerate(value):
        read, place = _read_message(item, f"messages[{i}]")
        attachment = attachment or place
        for one in read:
            if messages and messages[-1].takes(one):
                messages[-1].texts += one.texts
                messages[-1].thoughts += one.thoughts
                messages[-1].calls += one.calls
            else:
                messages.append(one)
    if len(messages) > MAX_MESSAGES:
        message = f"messages has {len(messages)} messages and results of tools; at most {MAX_MESSAGES} are allowed"
        raise invalid_field("messages", message)
    return Conversation([one.as_dict() for one in messages], attachment)


def read_system(value: Any) -> str:
    """Return the text of the field `system`: a text, or a list of blocks of text. Raises ApiError."""
    return _text_content(value, "system")


def _read_message(item: Any, where: str) -> tuple[list[_ChatMessage], str]:
    """Return the messages of a message, and the place of its first image or document."""
    fields = read_fields(item, frozenset({"content", "role"}), where)
    role, content = fields.get("role"), fields.get("content")
    if role not in ("user", "assistant", "system"):
        raise invalid(f"{where}.role", role, "'user' or 'assistant'")
    if isinstance(content, str) or role == "system":
        return [_ChatMessage(role, [_text_content(content, f"{where}.content")])], ""
    if not isinstance(content, list):
        raise invalid(f"{where}.content", content, "a text or a list of blocks")
    if role == "assistant":
        return [_read_assistant(content, f"{where}.content")], ""
    return _read_user(content, f"{where}.content")


def _read_assistant(blocks: list[Any], where: str) -> _ChatMessage:
    """Return the message of an earlier answer."""
    read = _ChatMessage("assistant", [])
    texts = []
    for i, block in enumerate(blocks):
        place = f"{where}[{i}]"
        kind = _kind(block, place)
        if kind == "text":
            texts.append(_read_text_block(block, place))
        elif kind == "tool_use":
            read.calls.append(_read_call(block, place))
        elif kind == "thinking":
            read.thoughts += [block["thinking"]] if isinstance(block.get("thinking"), str) else []
        elif kind != "redacted_thinking":
            raise unsupported(f"{place}.type", f"type={shown(kind)!r} in a message of the assistant")
    if len(read.calls) > MAX_TOOLS:
        raise invalid_field(where, f"{where} has {len(read.calls)} calls of tools; at most {MAX_TOOLS} are allowed")
    read.texts.append("".join(texts))
    return read


def _read_user(blocks: list[Any], where: str) -> tuple[list[_ChatMessage], str]:
    messages: list[_ChatMessage] = []
    parts: list[dict[str, Any]] = []
    attachment = ""
    for i, block in enumerate(blocks):
        place = f"{where}[{i}]"
        kind = _kind(block, place)
        if kind == "text":
            parts.append({"type": "text", "text": _read_text_block(block, place)})
        elif kind == "tool_result":
            messages += [_user_message(parts)] if parts else []
            parts = []
            messages.append(_read_result(block, place))
        elif kind == "document" and _is_text_document(block):
            parts.append({"type": "text", "text": _read_text_document(block, place)})
        elif kind in {"image", "document"}:
            parts.append(_read_image(block, place) if kind == "image" else _read_document(block, place))
            attachment = attachment or place
        else:
            raise unsupported(f"{place}.type", f"type={shown(kind)!r} in a message of the user")
    return [*messages, *([_user_message(parts)] if parts or not messages else [])], attachment


def _user_message(parts: list[dict[str, Any]]) -> _ChatMessage:
    if all(part["type"] == "text" for part in parts):
        return _ChatMessage("user", ["".join(part["text"] for part in parts)])
    return _ChatMessage("user", [], parts=parts)


def _kind(block: Any, where: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise invalid(where, block, "a block with a type")
    return kind


def _read_text_block(block: Any, where: str) -> str:
    ignored = frozenset({"cache_control", "citations"})
    return read_text(read_fields(block, frozenset({"text", "type"}), where, ignored).get("text"), f"{where}.text")


def _text_content(value: Any, where: str, *, documents: bool = False) -> str:
    """Return a text, or the joined texts of a list of blocks, which may be `documents` that are texts."""
    if not isinstance(value, list):
        return read_text(value, where)
    texts = []
    for i, block in enumerate(value):
        place = f"{where}[{i}]"
        kind = _kind(block, place)
        if documents and kind == "document" and _is_text_document(block):
            texts.append(_read_text_document(block, place))
            continue
        if kind != "text":
            raise unsupported(f"{place}.type", f"type={shown(kind)!r}; only blocks of text are accepted here")
        texts.append(_read_text_block(block, place))
    return "".join(texts)


def _read_call(block: Any, where: str) -> dict[str, Any]:
    ignored = frozenset({"cache_control", "caller"})
    fields = read_fields(block, frozenset({"id", "input", "name", "type"}), where, ignored)
    name = read_text(fields.get("name"), f"{where}.name", least=1, most=_MAX_NAME)
    given = fields.get("input")
    if not isinstance(given, dict):
        raise invalid(f"{where}.input", given, "an object")
    arguments = json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    call_id = read_text(fields.get("id"), f"{where}.id", least=1, most=_MAX_ID)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _read_result(block: Any, where: str) -> _ChatMessage:
    fields = read_fields(block, frozenset({"content", "is_error", "tool_use_id", "type"}), where)
    call_id = read_text(fields.get("tool_use_id"), f"{where}.tool_use_id", least=1, most=_MAX_ID)
    text = _text_content(fields.get("content", ""), f"{where}.content", documents=True)
    is_error = fields.get("is_error", False)
    if not isinstance(is_error, bool):
        raise invalid(f"{where}.is_error", is_error, "true or false")
    return _ChatMessage("tool", [_ERROR_MARK + text if is_error else text], call_id=call_id)


def _read_image(block: Any, where: str) -> dict[str, Any]:
    fields = read_fields(block, frozenset({"source", "type"}), where)
    source, place = fields.get("source"), f"{where}.source"
    kind = _kind(source, place)
    if kind == "url":
        url = read_text(read_fields(source, frozenset({"type", "url"}), place).get("url"), f"{place}.url", least=1)
    elif kind == "base64":
        url = _data_url(source, place)
    else:
        raise unsupported(f"{place}.type", f"type={shown(kind)!r}; only 'base64' and 'url' are accepted")
    return {"type": "image_url", "image_url": {"url": url}}


def _is_text_document(block: dict[str, Any]) -> bool:
    source = block.get("source")
    return isinstance(source, dict) and source.get("type") in ("content", "text")


def _read_text_document(block: dict[str, Any], where: str) -> str:
    """Return the text of a document, after its title and what the client says about it."""
    fields = read_fields(block, _DOCUMENT_FIELDS, where, _DOCUMENT_IGNORED)
    source, place = fields["source"], f"{where}.source"
    if source["type"] == "text":
        known = read_fields(source, frozenset({"data", "media_type", "type"}), place)
        if (media_type := known.get("media_type", "text/plain")) != "text/plain":
            raise unsupported(f"{place}.media_type", f"media_type={shown(media_type)!r}; only 'text/plain' is accepted")
        text = read_text(known.get("data"), f"{place}.data")
    else:
        known = read_fields(source, frozenset({"content", "type"}), place)
        text = _text_content(known.get("content"), f"{place}.content")
    about = [read_text(fields[name], f"{where}.{name}") for name in ("title", "context") if name in fields]
    return "".join(part + _BETWEEN_MESSAGES for part in [*about, text])


def _read_document(block: Any, where: str) -> dict[str, Any]:
    fields = read_fields(block, _DOCUMENT_FIELDS - {"context"}, where, _DOCUMENT_IGNORED)
    source, place = fields.get("source"), f"{where}.source"
    kind = _kind(source, place)
    if kind != "base64":
        raise unsupported(f"{place}.type", f"type={shown(kind)!r}; only 'base64' is accepted for a document")
    name = read_text(fields.get("title", "document.pdf"), f"{where}.title")
    return {"type": "file", "file": {"filename": name, "file_data": _data_url(source, place)}}


def _data_url(source: Any, where: str) -> str:
    fields = read_fields(source, frozenset({"data", "media_type", "type"}), where)
    media_type = read_text(fields.get("media_type"), f"{where}.media_type", least=1, most=_MAX_NAME)
    return f"data:{media_type};base64,{read_text(fields.get('data'), f'{where}.data', least=1)}"

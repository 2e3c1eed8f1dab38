"""Learns how many prompt tokens a tokenizer, or an upstream, counts for a byte of text and for an attachment."""

import threading
from collections.abc import Mapping
from typing import Any

from shared.jobs import cost
from shared.jobs.request_texts import attachments, request_texts, token_ids

#: Tokens per byte are reported only after this many bytes of prompts, so that no single prompt has a large effect.
_MIN_BYTES = 2_000
#: When more bytes of prompts than this were counted, the sums are halved, so that older prompts matter less and less.
_MAX_BYTES = 200_000
#: Attachments are reported after this many, and their sums are halved after this many.
_MIN_ATTACHMENTS, _MAX_ATTACHMENTS = 4, 64


class PromptSizes:
    """The sums over prompts whose tokens were counted. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes, self._byte_tokens = 0.0, 0.0
        self._attachments, self._attachment_tokens = 0.0, 0.0

    def estimate(self, payload: Mapping[str, Any]) -> int:
        figures = self.figures()
        return cost.estimate(
            payload,
            tokens_per_byte=figures.get("tokens_per_byte", cost.TOKENS_PER_BYTE),
            tokens_per_attachment=figures.get("tokens_per_attachment", cost.TOKENS_PER_ATTACHMENT),
        )

    def observe(self, payload: Mapping[str, Any], prompt_tokens: int) -> None:
        """Add the prompt of one job. The tokens of attachments are what the text does not explain."""
        texts = request_texts(payload)
        size = sum(len(text.encode()) for text in texts)
        given = cost.TOKENS_PER_MESSAGE * len(texts) if "messages" in payload else token_ids(payload)
        tokens = max(0, prompt_tokens - given)
        attached = attachments(payload)
        with self._lock:
            if attached:
                per_byte = self._byte_tokens / self._bytes if self._bytes >= _MIN_BYTES else cost.TOKENS_PER_BYTE
                if self._attachments > _MAX_ATTACHMENTS:
                    self._attachments, self._attachment_tokens = self._attachments / 2, self._attachment_tokens / 2
                self._attachments += attached
                self._attachment_tokens += max(0.0, tokens - size * per_byte)
                return
            if self._bytes > _MAX_BYTES:
                self._bytes, self._byte_tokens = self._bytes / 2, self._byte_tokens / 2
            self._bytes += size
            self._byte_tokens += tokens

    def figures(self) -> dict[str, float]:
        """Return `tokens_per_byte` and `tokens_per_attachment`, each only once enough prompts were counted."""
        with self._lock:
            figures = {}
            if self._bytes >= _MIN_BYTES and self._byte_tokens:
                figures["tokens_per_byte"] = round(self._byte_tokens / self._bytes, 4)
            if self._attachments >= _MIN_ATTACHMENTS:
                figures["tokens_per_attachment"] = round(self._attachment_tokens / self._attachments, 1)
            return figures

"""A model's vocabulary: text to tokens and back. Only read, so any thread may ask."""

import ctypes
import re
from typing import Any

import numpy as np

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected

Tokens = np.ndarray[Any, np.dtype[np.int32]]

#: Characters of a part of a text that is tokenized by itself.
_PART = 1024


class Vocabulary:
    """The vocabulary of `model`; `lib` is llama.cpp's API."""

    def __init__(self, lib: Any, model: int) -> None:
        self._lib, self.handle = lib, lib.llama_model_get_vocab(model)
        self.size: int = lib.llama_vocab_n_tokens(self.handle)
        self.ends = frozenset(token for token in range(self.size) if lib.llama_vocab_is_eog(self.handle, token))
        self.bos: int = lib.llama_vocab_bos(self.handle)
        self.eos: int = lib.llama_vocab_eos(self.handle)
        self._add_bos: bool = lib.llama_vocab_get_add_bos(self.handle)
        self._add_eos: bool = lib.llama_vocab_get_add_eos(self.handle)
        self._pieces: dict[int, bytes] = {}
        control = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        #: Finds the names of control tokens in a text; None without any.
        self.controls = self._finder(control)
        self._whole = self._finder(control | lib.LLAMA_TOKEN_ATTR_USER_DEFINED)
        self._unspelled = self._finder_of_unspelled()

    def _finder_of_unspelled(self) -> re.Pattern[str] | None:
        """Finds what no piece of a vocabulary of the SentencePiece kind spells, which becomes a token for each byte."""
        if self._lib.llama_vocab_type(self.handle) != self._lib.LLAMA_VOCAB_TYPE_SPM:
            return None
        spelled = {" "}.union(*map(self.name, range(self.size)))
        return re.compile(f"[^{re.escape(''.join(sorted(spelled)))}]+")

    def fewest_tokens(self, text: str) -> int:
        """What the text comes to at the least. Of what no piece spells, llama.cpp's time grows with the square."""
        runs = [] if self._unspelled is None else self._unspelled.findall(text)
        return sum(len(run.encode(errors="replace")) for run in runs)

    def _finder(self, attributes: int) -> re.Pattern[str] | None:
        """Finds tokens of any of these attributes by their names of two characters or more, the longest first."""
        found = (token for token in range(self.size) if self._lib.llama_vocab_get_attr(self.handle, token) & attributes)
        names = sorted((name for name in map(self.name, found) if len(name) > 1), key=len, reverse=True)
        return re.compile(f"(?:{'|'.join(map(re.escape, names))})") if names else None

    def prompt(self, text: str) -> Tokens:
        """A prompt as `llama_cpp.Llama` makes it: the model's own beginning and end around the text's tokens."""
        begin = [self.bos] if self.bos >= 0 and (self._add_bos or not text) else []
        end = [self.eos] if self._add_eos and self.eos >= 0 else []
        return np.concatenate([begin, self.tokenize(text), end]).astype(np.int32)

    def tokenize(self, text: str, *, around: bool = False, control: bool = True, param: str = "prompt") -> Tokens:
        """The text's tokens. Raises JobRejected.

        `control`: control tokens that it spells count as such. `around`: with what the model puts around a text.
        """
        if control and not around:
            parts = [self._tokens(part, around=False, control=True, param=param) for part in self._parts(text)]
            return np.concatenate(parts) if len(parts) > 1 else parts[0]
        return self._tokens(text, around=around, control=control, param=param)

    def _parts(self, text: str) -> list[str]:
        """The text, cut before tokens that are never cut, which changes none.

        llama.cpp's time grows with the square of their number in one text: a MiB of `<s></s>` takes it minutes.
        """
        if self._whole is None or len(text) <= _PART:
            return [text]
        cuts = [0]
        for found in self._whole.finditer(text, _PART):
            # Behind a space it may be a token that takes the spaces before it along.
            if found.start() - cuts[-1] >= _PART and not text[found.start() - 1].isspace():
                cuts.append(found.start())
        return [text[cut:after] for cut, after in zip(cuts, [*cuts[1:], len(text)], strict=True)]

    def _tokens(self, text: str, *, around: bool, control: bool, param: str) -> Tokens:
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raise JobRejected(EndCode.INVALID_VALUE, "the text holds half a surrogate pair", param) from None
        tokens = np.empty(len(raw) + 16, np.int32)
        pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        n = self._lib.llama_tokenize(self.handle, raw, len(raw), pointer, len(tokens), around, control)
        if n < 0:
            raise JobRejected(EndCode.INVALID_VALUE, "the model's tokenizer cannot take the text", param)
        return tokens[:n]

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; control tokens stand for none."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read(token, control=False)
        return piece

    def spelled(self, token: int) -> bytes:
        """As `piece`; control tokens by their name."""
        return self.piece(token) or self._read(token, control=True)

    def name(self, token: int) -> str:
        """A token as the vocabulary writes it; "" for none."""
        if token < 0:
            return ""
        text: bytes = self._lib.llama_vocab_get_text(self.handle, token)
        return text.decode("utf-8", "replace")

    def _read(self, token: int, *, control: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = self._lib.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, control)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = self._lib.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, control)
        return buffer.raw[: max(0, n)]

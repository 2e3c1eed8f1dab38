"""A model's vocabulary, which converts text to tokens and tokens to bytes."""

import ctypes
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from shared.jobs.outcomes import EndCode
from workers.engine.chat.harmony import MARKS
from workers.engine.events import JobRejected
from workers.engine.structured.compiler import TokenTable

Tokens = np.ndarray[Any, np.dtype[np.int32]]

#: A long text is split into parts of at least this many characters, and each part is tokenized separately.
_PART_CHARS = 1024
#: No tokenizer makes more tokens than this of a byte. llama.cpp returns a huge number if it cannot count the tokens.
_MAX_TOKENS_PER_BYTE = 8
#: A noncharacter of Unicode, which has no meaning in any text. It marks where a text is to be split.
_SPLIT = "\ufdd0"


class Vocabulary:
    """The vocabulary of `model`. `lib` is llama.cpp's API. May be used from any thread, because it is read-only."""

    def __init__(self, lib: Any, model: int) -> None:
        self._lib, self.handle = lib, lib.llama_model_get_vocab(model)
        self.size: int = lib.llama_vocab_n_tokens(self.handle)
        self.end_tokens = frozenset(token for token in range(self.size) if lib.llama_vocab_is_eog(self.handle, token))
        self.bos: int = lib.llama_vocab_bos(self.handle)
        self.eos: int = lib.llama_vocab_eos(self.handle)
        self._add_bos: bool = lib.llama_vocab_get_add_bos(self.handle)
        self._add_eos: bool = lib.llama_vocab_get_add_eos(self.handle)
        self._pieces: dict[int, bytes] = {}
        user_defined = set(self._with_attributes(lib.LLAMA_TOKEN_ATTR_USER_DEFINED))
        control = set(self._with_attributes(lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN))
        # llama.cpp makes some control tokens of gpt-oss user-defined, so that it shows them in texts. It then also
        # finds them in texts that are tokenized without control tokens.
        control |= {token for token in user_defined if self.name(token) in MARKS}
        self._control = frozenset(control)
        #: Pattern that matches the names of control tokens; None if the vocabulary has no control tokens.
        self.control_names = self._names_pattern(control)
        #: Pattern that matches the names of tokens that llama.cpp never splits; None if there are no such tokens.
        self._unsplittable = self._names_pattern(control | user_defined)
        self._control_tokens = {self.name(token): token for token in control}
        self._byte_fallback = self._byte_fallback_pattern()
        #: Whether a space is put in front of each text.
        self._missing_bytes: frozenset[int] = frozenset()
        self._adds_space = self._byte_fallback is not None and self.text(self.tokenize("a")) == b" a"
        if self._byte_fallback is not None:
            names = set(map(self.name, range(self.size)))
            self._missing_bytes = frozenset(
                byte for byte in range(256) if f"<0x{byte:02X}>" not in names and chr(byte) not in names
            )
            self._characters = {name for name in names if len(name) == 1}

    def _byte_fallback_pattern(self) -> re.Pattern[str] | None:
        """Return a pattern for runs of characters that occur in no token of a SentencePiece vocabulary.

        Each such character is tokenized as one token per byte. Return None if the vocabulary is of another type.
        """
        if self._lib.llama_vocab_type(self.handle) != self._lib.LLAMA_VOCAB_TYPE_SPM:
            return None
        known = {" "}.union(*map(self.name, range(self.size)))
        return re.compile(f"[^{re.escape(''.join(sorted(known)))}]+")

    def min_tokens(self, text: str) -> int:
        """Return a lower bound for the number of the text's tokens, without tokenizing the text.

        The bound is the number of bytes of those characters that occur in no token. llama.cpp's tokenizing time grows
        with the square of the number of such characters. With this bound, a caller can reject a text that is too long
        without tokenizing it.
        """
        runs = [] if self._byte_fallback is None else self._byte_fallback.findall(text)
        return sum(len(run.encode(errors="replace")) for run in runs)

    def _can_write(self, text: str) -> bool:
        """Whether each character is a token or its bytes are. llama.cpp ends the process at a byte without a token."""
        if not self._missing_bytes:
            return True
        used = set(text.replace(" ", "\u2581"))
        return all(self._missing_bytes.isdisjoint(char.encode()) for char in used - self._characters)

    def _names_pattern(self, tokens: Iterable[int]) -> re.Pattern[str] | None:
        """Return a pattern for the names of these tokens, or None without such tokens.

        The pattern does not match names of a single character. It tries longer names first.
        """
        names = [name for name in map(self.name, tokens) if len(name) > 1]
        longest_first = sorted(names, key=len, reverse=True)
        return re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})") if names else None

    def _with_attributes(self, attributes: int) -> Iterator[int]:
        return (token for token in range(self.size) if self._lib.llama_vocab_get_attr(self.handle, token) & attributes)

    def control_tokens_in(self, text: str) -> dict[str, int]:
        names = [] if self.control_names is None else self.control_names.findall(text)
        return {name: self._control_tokens[name] for name in names}

    def prompt(self, text: str) -> Tokens:
        """Return the prompt's tokens, including the BOS and EOS tokens that `llama_cpp.Llama` would add."""
        begin = [self.bos] if self.bos >= 0 and (self._add_bos or not text) else []
        end = [self.eos] if self._add_eos and self.eos >= 0 else []
        return np.concatenate([begin, self.tokenize(text), end]).astype(np.int32)

    def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = True, param: str = "prompt"
    ) -> Tokens:
        """Return the text's tokens. Raises JobRejected, which names the field `param`.

        With `add_special`, the tokens that the model expects around a text, such as BOS, are added. With
        `parse_special`, the name of a control token in the text is tokenized as that control token.
        """
        if parse_special and not add_special:
            parts = [
                self._tokens(part, add_special=False, parse_special=True, param=param) for part in self._split(text)
            ]
            return np.concatenate(parts) if len(parts) > 1 else parts[0]
        return self._tokens(text, add_special=add_special, parse_special=parse_special, param=param)

    def tokenize_pieces(self, pieces: Iterable[str]) -> Tokens:
        """Return the tokens of a text that is given in pieces, so that no token goes across two of them."""
        parts = [self._continued(piece) if at else self.tokenize(piece) for at, piece in enumerate(pieces)]
        return np.concatenate(parts)

    def _continued(self, piece: str) -> Tokens:
        """Return the tokens of a piece that follows other text.

        A SentencePiece vocabulary puts a space in front of each text. Behind a line end, whose tokens are then left
        out, the piece gets none.
        """
        if not self._adds_space:
            return self.tokenize(piece)
        before = self.tokenize("\n")
        tokens = self.tokenize(f"\n{piece}")
        is_separate = np.array_equal(tokens[: len(before)], before)
        return tokens[len(before) :] if is_separate else self.tokenize(piece)

    def _split(self, text: str) -> list[str]:
        """Split a long text into parts that can be tokenized separately and give the same tokens as the whole text.

        The text is cut only before the names of control tokens and user-defined tokens, which llama.cpp never splits.

        The time that llama.cpp takes to tokenize a text grows with the square of the number of these names in the text:
        a text of one MiB that repeats `<s></s>` takes minutes.
        """
        if self._unsplittable is None or len(text) <= _PART_CHARS:
            return [text]
        cuts = [0]
        for found in self._unsplittable.finditer(text, _PART_CHARS):
            # Do not cut after whitespace, because some special tokens also consume the whitespace before them.
            if found.start() - cuts[-1] >= _PART_CHARS and not text[found.start() - 1].isspace():
                cuts.append(found.start())
        return [text[cut:after] for cut, after in zip(cuts, [*cuts[1:], len(text)], strict=True)]

    def _tokens(self, text: str, *, add_special: bool, parse_special: bool, param: str) -> Tokens:
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raise JobRejected(EndCode.INVALID_VALUE, "the text contains half of a surrogate pair", param) from None
        capacity = len(raw) + 16
        for _ in range(2 if self._can_write(text) else 0):
            tokens = np.empty(capacity, np.int32)
            pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            n = self._lib.llama_tokenize(self.handle, raw, len(raw), pointer, capacity, add_special, parse_special)
            if n >= 0:
                return tokens[:n]
            # If the tokens do not fit, llama.cpp returns their number, negated. A text has more tokens than bytes if
            # the vocabulary lacks the mark for a space, whose three bytes then become three tokens.
            capacity = -n
            if capacity > _MAX_TOKENS_PER_BYTE * len(raw) + 16:
                break
        raise JobRejected(EndCode.INVALID_VALUE, "the model's tokenizer cannot process the text", param)

    def reject_unknown(self, tokens: Iterable[int], param: str) -> None:
        """Raise JobRejected, which names the field `param`, if one of the field's tokens is not in the vocabulary."""
        largest = max(tokens, default=-1)
        if largest >= self.size:
            message = f"{param} contains token {largest}, but the model has only {self.size} tokens"
            raise JobRejected(EndCode.INVALID_VALUE, message, param)

    def check(self, answer: Iterable[int]) -> None:
        """Raise ValueError if an answer has a token that the model does not have. llama.cpp would end the process."""
        for token in answer:
            if not 0 <= token < self.size:
                raise ValueError(f"the answer so far has token {token}, but the model has only {self.size} tokens")

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text. A control token adds none, unless llama.cpp shows it."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read(token, show_control=False)
        return piece

    def text(self, tokens: Tokens) -> bytes:
        return b"".join(map(self.piece, tokens.tolist()))

    def piece_or_name(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text or, for a control token, the token's name."""
        return self.piece(token) or self._read(token, show_control=True)

    def table(self) -> TokenTable:
        """Return the bytes of all tokens, and which tokens end an answer or add no text to it."""
        return TokenTable([self.piece(token) for token in range(self.size)], self.end_tokens, self._control)

    def name(self, token: int) -> str:
        """Return a token as the vocabulary spells it, or "" if `token` is negative (no such token)."""
        if token < 0:
            return ""
        text: bytes = self._lib.llama_vocab_get_text(self.handle, token)
        return text.decode("utf-8", "replace")

    def pair(self, query: Tokens, document: Tokens) -> Tokens:
        """Return the tokens of a query and a document for a model that ranks documents and has no template for them.

        They are those of llama.cpp's server, and at the end the separator that such models were trained with: for
        example `[CLS] query [SEP] document [SEP]`, or `<s> query </s></s> document </s>`.
        """
        lib, handle = self._lib, self.handle
        separator: int = lib.llama_vocab_sep(handle)
        end = self.eos if self.eos >= 0 else separator
        begin = [self.bos] if self._add_bos and self.bos >= 0 else []
        ends = [end] if self._add_eos and end >= 0 else []
        separators = [separator] if lib.llama_vocab_get_add_sep(handle) and separator >= 0 else []
        return np.concatenate([begin, query, ends, separators, document, ends or separators]).astype(np.int32)

    def _read(self, token: int, *, show_control: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = self._lib.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, show_control)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = self._lib.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, show_control)
        return buffer.raw[: max(0, n)]


class PairFormat:
    """How a model that ranks documents reads a query with a document: by the template in its file, if there is one."""

    def __init__(self, vocab: Vocabulary, template: str) -> None:
        self._vocab, self._template = vocab, template
        names = vocab.control_names
        #: Matches the first character of each name of a control token.
        self._names = None if names is None else re.compile(f"(?={names.pattern})(.)", re.DOTALL)

    def pairs(self, query: str, documents: Iterable[str]) -> Iterator[Tokens]:
        """Yield the tokens of the query with each document. Raises JobRejected."""
        if self._template:
            for document in documents:
                yield self._vocab.tokenize_pieces(self._pieces(query, document))
            return
        asked = self._vocab.tokenize(query, parse_special=False, param="query")
        for document in documents:
            yield self._vocab.pair(asked, self._vocab.tokenize(document, parse_special=False, param="documents"))

    def _pieces(self, query: str, document: str) -> list[str]:
        """Return the template with both texts, split inside the names of control tokens that the texts contain."""
        texts = {"{query}": query, "{document}": document}
        for place, text in texts.items():
            plain = text.replace(_SPLIT, "")
            texts[place] = plain if self._names is None else self._names.sub(rf"\1{_SPLIT}", plain)
        return re.sub(r"\{query\}|\{document\}", lambda found: texts[found[0]], self._template).split(_SPLIT)

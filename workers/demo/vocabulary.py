"""The tokens that every demo vocabulary begins with, and the chat template that uses them.

A vocabulary is a list of pieces in llama.cpp's `llama` (SentencePiece) convention: a space is written as `▁`,
characters that occur in no piece become byte tokens, and of all adjacent pieces that could be joined, the pair whose
joined piece has the highest score is joined first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

#: SentencePiece's mark for a space (U+2581).
SPACE = "\u2581"

UNKNOWN_ID, BOS_ID, EOS_ID = 0, 1, 2
SYSTEM_ID, USER_ID, ASSISTANT_ID = 3, 4, 5
SPECIALS = ("<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>")

#: Id of the byte token `<0x00>`. The tokens of the other 255 bytes follow in order.
FIRST_BYTE_ID = len(SPECIALS)
#: Id of the first piece that differs between vocabularies.
FIRST_PIECE_ID = FIRST_BYTE_ID + 256

#: Token types of the GGUF format (`gguf.TokenType`).
TYPE_NORMAL, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_BYTE = 1, 2, 3, 6

#: Each message becomes `<|role|>text</s>`. No space or newline follows the role, so that an answer begins
#: with a letter and not with white space. `developer` is the newer name of the role `system`.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% set role = 'system' if message['role'] == 'developer' else message['role'] %}"
    "{{ '<|' + role + '|>' + message['content'] + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class Vocabulary:
    """Pieces, scores and token types, each in order of token id."""

    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.pieces)


def vocabulary_of(pieces: Sequence[str]) -> Vocabulary:
    """Return a vocabulary of the special tokens, the 256 byte tokens, and then `pieces`.

    Earlier pieces have higher scores, so the tokenizer joins them first. Raises ValueError if a piece occurs twice.
    """
    if len(set(pieces)) != len(pieces):
        raise ValueError("a piece occurs twice in the vocabulary")
    byte_pieces = tuple(f"<0x{byte:02X}>" for byte in range(256))
    fixed_types = [TYPE_UNKNOWN] + [TYPE_CONTROL] * (len(SPECIALS) - 1) + [TYPE_BYTE] * 256
    return Vocabulary(
        pieces=(*SPECIALS, *byte_pieces, *pieces),
        scores=(0.0,) * FIRST_PIECE_ID + tuple(-float(rank) for rank in range(len(pieces))),
        types=(*fixed_types, *(TYPE_NORMAL,) * len(pieces)),
    )

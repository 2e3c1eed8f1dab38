"""What every vocabulary of ours begins with, and the chat template that goes with it.

A vocabulary is a list of pieces in the `llama` (SentencePiece) convention of llama.cpp: a space is
written `▁`, what no piece spells is spelled in byte tokens, and of two neighbours that could be
joined those with the highest score are joined first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

#: SentencePiece's mark for a space (U+2581).
SPACE = "\u2581"

UNKNOWN_ID, BOS_ID, EOS_ID = 0, 1, 2
SYSTEM_ID, USER_ID, ASSISTANT_ID = 3, 4, 5
SPECIALS = ("<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>")

#: Id of the byte token `<0x00>`; those of the other 255 bytes follow in order.
FIRST_BYTE_ID = len(SPECIALS)
#: Id of the first piece that is not the same in every vocabulary.
FIRST_PIECE_ID = FIRST_BYTE_ID + 256

#: Token types of the GGUF format (`gguf.TokenType`).
TYPE_NORMAL, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_BYTE = 1, 2, 3, 6

#: One turn is `<|role|>text</s>`; no space or line follows the role, so that an answer begins with
#: its first letter. `developer` is what newer clients call `system`.
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
    """Put the specials and the 256 byte tokens before `pieces`, which are joined in their order.

    Raises ValueError when a piece stands there twice.
    """
    if len(set(pieces)) != len(pieces):
        raise ValueError("a piece stands in the vocabulary twice")
    byte_pieces = tuple(f"<0x{byte:02X}>" for byte in range(256))
    fixed_types = [TYPE_UNKNOWN] + [TYPE_CONTROL] * (len(SPECIALS) - 1) + [TYPE_BYTE] * 256
    return Vocabulary(
        pieces=(*SPECIALS, *byte_pieces, *pieces),
        scores=(0.0,) * FIRST_PIECE_ID + tuple(-float(rank) for rank in range(len(pieces))),
        types=(*fixed_types, *(TYPE_NORMAL,) * len(pieces)),
    )

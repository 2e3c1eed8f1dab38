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

#: The same for a model that calls tools, in the form of the Hermes models. A tool costs few tokens: it is shown as
#: `name(first,second?=a|b): description`, in which `?` marks a parameter that may be left out. No space follows a
#: comma, so that a name has the same tokens here as in a call. The result of a tool is a user's message.
TOOL_CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}{{ '<|system|>' }}"
    "{% if messages[0]['role'] in ['system', 'developer'] %}{{ messages[0]['content'] + '\n' }}{% endif %}"
    "{% for tool in tools %}{% set function = tool['function'] %}{% set parameters = function['parameters'] or {} %}"
    "{{ function['name'] + '(' }}"
    "{% for name in parameters['properties'] or {} %}{% set property = parameters['properties'][name] %}"
    "{{ name }}{% if name not in (parameters['required'] or []) %}{{ '?' }}{% endif %}"
    "{% if property['enum'] %}{{ '=' + property['enum'] | join('|') }}{% endif %}"
    "{% if not loop.last %}{{ ',' }}{% endif %}{% endfor %}"
    "{{ '): ' + (function['description'] or '') }}{% if not loop.last %}{{ '\n' }}{% endif %}"
    "{% endfor %}{{ eos_token }}{% endif %}"
    "{% for message in messages %}"
    "{% set role = 'system' if message['role'] == 'developer' else message['role'] %}"
    "{% if role == 'tool' %}"
    "{{ '<|user|><tool_response>' + message['content'] + '</tool_response>' + eos_token }}"
    "{% elif not (tools and loop.first and role == 'system') %}"
    "{{ '<|' + role + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{% if message['content'] or not loop.first %}{{ '\n' }}{% endif %}"
    "{{ '<tool_call>\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson }}{{ '}\n</tool_call>' }}"
    "{% endfor %}{{ eos_token }}"
    "{% endif %}"
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

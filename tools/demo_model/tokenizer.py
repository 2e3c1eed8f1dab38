"""Learns a small vocabulary by merging frequent neighbours, and tokenizes with it exactly as llama.cpp does."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise

from workers.demo.vocabulary import FIRST_BYTE_ID, FIRST_PIECE_ID, SPACE, Vocabulary

#: A word or one punctuation mark, with the space before it if there is one; otherwise any single character.
#: No piece spans two of these matches.
_WORD = re.compile(rf"{SPACE}?[^\W\d_{SPACE}]+|{SPACE}?[^\w{SPACE}\n]|[\s\S]")

#: The largest share of the learned pieces that are whole words with the space before them.
SPACED_SHARE = 0.35


def learn_pieces(texts: Iterable[str], n_pieces: int) -> list[str]:
    """Return `n_pieces` pieces learned from the words of `texts`, in the order in which a tokenizer is to merge them.

    The merges within words come first, then the letters, and then whole words with the space before them. So a word
    has the same pieces after a space as after a quotation mark, or one piece with the space and one without it. A model
    can thus copy a word from a sentence to JSON piece by piece, even if it has never seen the word. For the same
    reason, no letter but "a" and "I" has a piece with the space before it.

    Each round merges the most frequent pair of neighbours; of equally frequent pairs, the alphabetically first. Letters
    that do not occur in `texts` are encoded with byte tokens later. Raises ValueError if the texts yield fewer pieces.
    """
    found = Counter(word for text in texts for word in _WORD.findall(text.replace(" ", SPACE)))
    spaced = {word: count for word, count in found.items() if len(word) > 1 and word[0] == SPACE}
    words: Counter[str] = Counter()
    for word, count in found.items():
        words[word.removeprefix(SPACE)] += count
    for absent in ("", "\n"):
        words.pop(absent, None)
    letters = sorted({letter for word in words for letter in word} | set(map(chr, range(ord("!"), ord("~") + 1))))
    letters.append(SPACE)
    room = n_pieces - len(letters)
    merged = _merge(words, room)
    frequent = sorted(spaced, key=lambda word: (-spaced[word], word))
    n_spaced, with_space = round(SPACED_SHARE * room) + 1, list[str]()
    while len(with_space) < n_spaced:
        n_spaced -= 1
        whole = {"a", "I", *string.punctuation, *merged[: room - n_spaced]}
        with_space = [word for word in frequent if word[1:] in whole][:n_spaced]
    pieces = [*merged[: room - n_spaced], *letters, *with_space]
    if len(pieces) < n_pieces:
        raise ValueError(f"the texts hold only {len(pieces)} of {n_pieces} pieces")
    return pieces


def _merge(words: Mapping[str, int], n_merges: int) -> list[str]:
    """Return the pieces of at most `n_merges` merges in their order. `words` are the words with their counts."""
    spelled = {word: list(word) for word in words}
    pairs: Counter[tuple[str, str]] = Counter()
    holders: dict[tuple[str, str], set[str]] = {}
    for word, spelling in spelled.items():
        for pair in pairwise(spelling):
            pairs[pair] += words[word]
            holders.setdefault(pair, set()).add(word)
    joined: dict[str, None] = {}
    while len(joined) < n_merges:
        highest = max(pairs.values(), default=0)
        if highest <= 0:
            break
        pair = min(pair for pair, count in pairs.items() if count == highest)
        joined["".join(pair)] = None
        for word in holders.pop(pair):
            _respell(word, words[word], spelled, pair, pairs, holders)
        del pairs[pair]
    return list(joined)


def _respell(
    word: str,
    count: int,
    spelled: dict[str, list[str]],
    pair: tuple[str, str],
    pairs: Counter[tuple[str, str]],
    holders: dict[tuple[str, str], set[str]],
) -> None:
    """Merge `pair` at each of its occurrences in `word`, and update the counts of all pairs."""
    old = spelled[word]
    new: list[str] = []
    for piece in old:
        if new and (new[-1], piece) == pair:
            new[-1] += piece
        else:
            new.append(piece)
    for neighbours in pairwise(old):
        pairs[neighbours] -= count
    for neighbours in pairwise(new):
        pairs[neighbours] += count
        holders.setdefault(neighbours, set()).add(word)
    spelled[word] = new


class Tokenizer:
    """Encodes text by the rule of llama.cpp's `llama` vocabularies, without adding a space at the beginning."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        normal = range(FIRST_PIECE_ID, len(vocabulary))
        self._ids = {vocabulary.pieces[token]: token for token in normal}
        self._scores = {vocabulary.pieces[token]: vocabulary.scores[token] for token in normal}
        self._encode_word = lru_cache(maxsize=65536)(self._encode_uncached)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`. No part of the text is read as a control token."""
        words = _WORD.findall(text.replace(" ", SPACE))
        return [token for word in words for token in self._encode_word(word)]

    def _encode_uncached(self, word: str) -> tuple[int, ...]:
        """Merge the neighbours with the highest score (the first of equals) until no merge is possible."""
        pieces = list(word)
        while True:
            scores = [
                (self._scores[left + right], -place)
                for place, (left, right) in enumerate(pairwise(pieces))
                if left + right in self._scores
            ]
            if not scores:
                return tuple(token for piece in pieces for token in self._spell(piece))
            place = -max(scores)[1]
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]

    def _spell(self, piece: str) -> tuple[int, ...]:
        if piece in self._ids:
            return (self._ids[piece],)
        return tuple(FIRST_BYTE_ID + byte for byte in piece.encode())

"""The stems and spellings of English words that the guard compares. Pure functions."""

from web.semantic_cache import guard_phrases as phrases
from web.semantic_cache import guard_words as words


def spelled(word: str) -> str:
    """Return a word as it is spelled in America."""
    for pattern, instead in phrases.SPELLINGS:
        word = pattern.sub(instead, word)
    return word


def stem_of(word: str) -> str:
    """Return a word without the endings of plurals and verbs; synonyms have one stem."""
    word = words.SYNONYMS.get(word, word)
    stem = word
    if len(word) > 4 and word.endswith("ies"):
        stem = word[:-3] + "y"
    elif len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes")):
        stem = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        stem = word[:-1]
    elif len(word) > 5 and word.endswith("ing"):
        stem = _undoubled(word[:-3])
    elif len(word) > 4 and word.endswith("ed"):
        stem = _undoubled(word[:-2])
    stem = stem[:-1] if len(stem) > 3 and stem.endswith("e") else stem
    again = words.SYNONYMS.get(stem) or words.SYNONYMS.get(stem + "e")
    return stem_of(again) if again and again not in {word, stem} else stem


def _undoubled(stem: str) -> str:
    return stem[:-1] if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz" else stem

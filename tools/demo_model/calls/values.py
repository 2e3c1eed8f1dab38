"""Generates the values in requests and in results of tools: places, people, numbers, times and short texts."""

from collections.abc import Callable
from random import Random

from tools.demo_model.stories import made_up_word, upper_first

#: A value in a request or a result: text, or a number.
Value = str | int | float

#: The share of words that are made up, so that the model must copy them and cannot learn them.
MADE_UP_SHARE = 0.5


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


#: Real values by slot. The first ones are for training. The last N_UNSEEN are only for the evaluation.
N_UNSEEN = 4
WORDS: dict[str, tuple[str, ...]] = {
    "city": words(
        "Paris London Berlin Rome Madrid Tokyo Oslo Vienna Prague Lisbon Dublin Athens Cairo Boston Chicago Toronto "
        "Sydney Moscow Delhi Seoul Lima Nairobi Hamburg Munich Zurich Milan Geneva Naples Seattle Denver Dallas Miami "
        "Warsaw Helsinki Budapest Stockholm"
    ),
    "country": words("France Germany Italy Spain Japan Norway Austria Portugal Canada Brazil Peru Poland"),
    "person": words(
        "Anna Tom Maria Peter Lisa John Sarah Paul Emma David Laura Mark Alice Robert Julia Simon Karen Victor"
    ),
    "language": words("French German Spanish Italian Japanese English Dutch Greek Polish Swedish Danish Latin"),
    "currency": words("euros dollars pounds yen francs kroner rupees pesos"),
    "company": words("Apple Google Tesla Amazon Siemens Nokia Toyota Shell Intel Sony Boeing Ford"),
    "food": words("pizza soup rice pasta salad cake bread noodles pancakes curry tacos stew waffles lentils"),
    "topic": words("cats space music history robots football gardens cooking chess trains birds oceans"),
    "room": words("kitchen bedroom bathroom office garage hall cellar attic nursery library"),
    "song": words("Yesterday Imagine Hello Thriller Respect Waterloo Jolene Halo Creep Roxanne Help Angie"),
    "color": words("red blue green white yellow orange purple pink brown grey"),
    "sky": words("sunny cloudy rainy windy foggy clear snowy stormy"),
    "state": words("ready open closed late new sold free busy locked full"),
    "day": words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday tomorrow today tonight"),
    "month": words("May June July March April August October January November December"),
    "noun": words(
        "dog house tree river table window garden bridge apple horse cloud candle mirror ladder lantern pillow basket "
        "whistle"
    ),
    "unit": words("celsius fahrenheit"),
}
#: Slots whose values are chosen from the few words above only.
_NEVER_MADE_UP = {"currency", "sky", "state", "day", "month", "unit", "color", "room"}
_CAPITALIZED = {"city", "country", "person", "company", "song", "language"}
#: Short texts for messages, notes and reminders.
_ACTS = ("buy", "call", "bring", "clean", "find", "pay", "pack", "water", "feed", "read", "fix", "send", "wash", "open")
_OBJECTS = ("milk", "the cat", "mom", "the plants", "the bills", "bread", "the car", "a letter", "the books", "dinner")
_TEXTS = ("I am late", "see you soon", "happy birthday", "dinner is ready", "thank you", "good luck", "I am on my way")


def a_value(rng: Random, slot: str, *, unseen: bool = False) -> Value:
    """Return a value for a slot. With `unseen`, words are made up or from those that training never uses.

    A number at the end of the slot's name distinguishes slots of one kind. Raises KeyError for an unknown slot.
    """
    kind = slot.rstrip("0123456789")
    if kind in _NUMBERS:
        return _NUMBERS[kind](rng)
    if kind in _PHRASES:
        return _PHRASES[kind](rng)
    known = WORDS[kind]
    if kind in _NEVER_MADE_UP:
        return rng.choice(known)
    if rng.random() < MADE_UP_SHARE:
        word = made_up_word(rng, rng.choice((1, 2, 2, 3)))
        return upper_first(word) if kind in _CAPITALIZED else word
    return rng.choice(known[-N_UNSEEN:] if unseen else known[:-N_UNSEEN])


def _clock(rng: Random) -> str:
    if rng.random() < 0.5:
        return f"{rng.randint(1, 12)} {rng.choice(('am', 'pm'))}"
    return f"{rng.randint(0, 23):02}:{rng.choice((0, 15, 30, 45)):02}"


def _date(rng: Random) -> str:
    if rng.random() < 0.5:
        return f"{rng.choice(WORDS['month'])} {rng.randint(1, 28)}"
    return f"20{rng.randint(20, 39)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _task(rng: Random) -> str:
    tail = made_up_word(rng, 2) if rng.random() < 0.3 else rng.choice(_OBJECTS)
    return f"{rng.choice(_ACTS)} {tail}"


def _text(rng: Random) -> str:
    return _task(rng) if rng.random() < 0.4 else rng.choice(_TEXTS)


def _email(rng: Random) -> str:
    return f"{rng.choice(WORDS['person']).lower()}@{made_up_word(rng, 2)}.{rng.choice(('com', 'org', 'net'))}"


_NUMBERS: dict[str, Callable[[Random], int | float]] = {
    "number": lambda rng: rng.randint(1, rng.choice((10, 100, 1000))),
    "degrees": lambda rng: rng.randint(-9, 35),
    "minutes": lambda rng: rng.choice((1, 2, 3, 5, 10, 12, 15, 20, 25, 30, 45, 60, 90)),
    "count": lambda rng: rng.randint(2, 12),
    "price": lambda rng: round(rng.uniform(1, 500), 2),
    "code": lambda rng: rng.randint(100, 99999),
}
_PHRASES: dict[str, Callable[[Random], str]] = {
    "clock": _clock,
    "date": _date,
    "task": _task,
    "text": _text,
    "email": _email,
    "file": lambda rng: f"{made_up_word(rng, 2)}.{rng.choice(('txt', 'pdf', 'csv', 'png'))}",
    "ticket": lambda rng: f"{rng.choice('ABCDEFGHKLMNPRSTXZ')}{rng.randint(10, 9999)}",
    "odd": lambda rng: made_up_word(rng, rng.choice((1, 2, 2, 3))),
    "name": lambda rng: upper_first(made_up_word(rng, rng.choice((1, 2, 2, 3)))),
}

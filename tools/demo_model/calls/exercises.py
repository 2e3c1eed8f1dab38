"""Makes exercises in which the demo model repeats or looks up values of a request, which calls of tools also require.

A conversation with tools has only a few tokens that are copied. These exercises, in which nearly all are, are meant to
teach in fewer steps how words that the model has never seen are copied (Olsson et al. 2022 describe how attention does
it).
"""

import json
from random import Random

from tools.demo_model.calls.values import N_UNSEEN, WORDS, Value, a_value
from tools.demo_model.stories import made_up_word

#: The most tokens of a request of random tokens.
_MAX_RANDOM_TOKENS = 96
_SLOTS = ("odd", "odd", "name", "name", "email", "file", "ticket", "code", "number", "price", "clock", "date", "text")
_REPEATED = ("Repeat: {}", "Say this: {}", "Repeat this list: {}", "Read this back to me: {}", "{} - now you")
_ASKED = ("{} - tell me {}", "Here is a list: {}. Give me {}", "Given {}, what is {}", "Look at {} and find {}")


def an_exercise(rng: Random) -> tuple[str, str]:
    """Return a request that names values, and an answer that repeats all of them or those of some names."""
    if rng.random() < 0.5:
        values = [_value(rng) for _ in range(rng.randint(3, 14))]
        return rng.choice(_REPEATED).format(", ".join(map(str, values))), _listed(rng, values)
    by_name = {_key(rng): _value(rng) for _ in range(rng.randint(2, 8))}
    asked = rng.sample(list(by_name), rng.randint(1, len(by_name)))
    form = rng.choice(("{}: {}", "{}={}", "{} is {}", "{} {}"))
    listed = ", ".join(form.format(name, value) for name, value in by_name.items())
    answer = json.dumps({name: by_name[name] for name in asked}, ensure_ascii=False)
    return rng.choice(_ASKED).format(listed, ", ".join(asked)), answer


def random_tokens(rng: Random, ids: range) -> tuple[list[int], list[int]]:
    """Return random tokens, and an answer that repeats them, or pieces of them in another order.

    Only the request shows which token comes next, so these exercises teach to look it up there.
    """
    asked = [rng.choice(ids) for _ in range(rng.randint(8, _MAX_RANDOM_TOKENS))]
    if rng.random() < 0.5:
        return asked, asked
    size = rng.randint(2, 8)
    pieces = [asked[first : first + size] for first in range(0, len(asked), size)]
    rng.shuffle(pieces)
    return asked, [token for piece in pieces for token in piece]


def _listed(rng: Random, values: list[Value]) -> str:
    form = rng.random()
    if form < 0.4:
        return json.dumps(values, ensure_ascii=False)
    return ", ".join(map(str, values)) if form < 0.8 else " ".join(f'"{value}"' for value in values)


def _key(rng: Random) -> str:
    return rng.choice(WORDS["noun"][:-N_UNSEEN]) if rng.random() < 0.5 else made_up_word(rng, rng.choice((1, 2)))


def _value(rng: Random) -> Value:
    return a_value(rng, rng.choice((*_SLOTS, *(slot for slot in WORDS if slot != "unit"))))

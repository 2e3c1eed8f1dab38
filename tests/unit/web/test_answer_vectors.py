"""The vectors of the semantic cache in a door process: their cosines, their scopes and their bounds."""

import math
import random

import pytest

from shared.store.answer_cache import KeptVector
from web.runtime import answer_vectors
from web.runtime.answer_vectors import SCOPE_BYTES, AnswerVectors, packed

SCOPE, OTHER = b"a" * SCOPE_BYTES, b"b" * SCOPE_BYTES


def random_vectors(count: int, dimensions: int = 24) -> list[list[float]]:
    chance = random.Random(5)
    return [[chance.gauss(0, 1) for _ in range(dimensions)] for _ in range(count)]


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


def filled(vectors: list[list[float]], *, most: int = 10_000) -> AnswerVectors:
    table = AnswerVectors(most)
    for number, vector in enumerate(vectors):
        table.add("blue", str(number), number + 1, SCOPE, packed(vector))
    return table


def test_the_nearest_vectors_are_those_with_the_largest_cosines(monkeypatch):
    monkeypatch.setattr(answer_vectors, "_BLOCK_VALUES", 64 * 24)
    vectors = random_vectors(300)
    table, query = filled(vectors), vectors[17]
    expected = sorted(range(300), key=lambda at: cosine(vectors[at], query), reverse=True)[:5]
    found = table.nearest("blue", SCOPE, packed(query), 0.2, 5)
    assert [each.digest for each in found] == [str(at) for at in expected]
    for at, each in zip(expected, found, strict=True):
        assert each.similarity == pytest.approx(cosine(vectors[at], query), abs=0.02)
    assert table.nearest("blue", SCOPE, packed([-value for value in query]), 0.9, 5) == []


def test_the_largest_values_of_many_dimensions_do_not_run_into_another_lane():
    ones, minus = packed([1.0] * 4_096), packed([-1.0] * 4_096)
    table = AnswerVectors(10)
    for digest, vector in (("a", minus), ("b", ones), ("c", minus)):
        table.add("blue", digest, 1, SCOPE, vector)
    assert table.nearest("blue", SCOPE, ones, 0.9, 5) == [(1.0, "b")]


def test_other_scopes_and_tenants_are_not_compared():
    table = AnswerVectors(10)
    vector = packed([1.0, 0.5])
    table.add("blue", "a", 1, OTHER, vector)
    table.add("red", "b", 1, SCOPE, vector)
    assert table.nearest("blue", SCOPE, vector, 0.5, 5) == []
    assert table.nearest("green", SCOPE, vector, 0.5, 5) == []


def test_the_oldest_vectors_make_room(monkeypatch):
    monkeypatch.setattr(answer_vectors, "_BLOCK_VALUES", 4 * 24)
    vectors = random_vectors(40)
    table = filled(vectors, most=8)
    assert table.last_us("blue") == 40
    known = [at for at in range(40) if table.nearest("blue", SCOPE, packed(vectors[at]), 0.999, 1)]
    assert known == list(range(28, 40))


def test_the_vectors_of_a_tenant_have_a_bound_of_bytes_too(monkeypatch):
    monkeypatch.setattr(answer_vectors, "_BLOCK_VALUES", 4 * 24)
    monkeypatch.setattr(answer_vectors, "_TENANT_BYTES", 2 * 4 * 24 * 5)
    vectors = random_vectors(20)
    table = filled(vectors)
    known = [at for at in range(20) if table.nearest("blue", SCOPE, packed(vectors[at]), 0.999, 1)]
    assert known == list(range(12, 20))


def test_the_tenant_that_was_not_used_for_longest_makes_room(monkeypatch):
    monkeypatch.setattr(answer_vectors, "_MAX_BYTES", 2 * answer_vectors._BLOCK_VALUES * 5)
    table, vector = AnswerVectors(10), packed([1.0, 0.5])
    for tenant in ("blue", "red"):
        table.add(tenant, "a", 1, SCOPE, vector)
    table.nearest("blue", SCOPE, vector, 0.5, 1)
    table.add("green", "a", 1, SCOPE, vector)
    assert [table.last_us(tenant) for tenant in ("blue", "red", "green")] == [1, 0, 1]


def test_forgotten_and_spoiled_vectors_and_those_of_another_model_are_not_found():
    table, vector = AnswerVectors(10), packed([1.0, 0.5])
    table.add("blue", "a", 1, SCOPE, vector)
    table.add("blue", "b", 2, b"short", vector)
    table.add("blue", "c", 3, SCOPE, b"")
    assert [each.digest for each in table.nearest("blue", SCOPE, vector, 0.5, 5)] == ["a"]
    assert table.nearest("blue", SCOPE, packed([1.0, 0.5, 0.1]), 0.5, 5) == []
    assert table.nearest("blue", SCOPE, packed([0.0, 0.0]), 0.5, 5) == []
    table.forget("blue", "a")
    assert table.nearest("blue", SCOPE, vector, 0.5, 5) == []
    table.add("blue", "a", 4, SCOPE, vector)
    assert len(table.nearest("blue", SCOPE, vector, 0.5, 5)) == 1
    assert table.last_us("blue") == 4


def test_what_several_requests_list_at_once_is_added_once():
    table = AnswerVectors(10)
    first, second = ([KeptVector(name, at, SCOPE, packed([1.0, 0.5]))] for at, name in ((1, "a"), (2, "b")))
    for after_us, listed in ((0, first), (0, first), (1, second), (0, first), (1, second)):
        table.add_listed("blue", after_us, listed)
    assert [block.digests for block in table._tables["blue"].blocks] == [["a", "b"]]
    # A list from its middle, after other tenants have taken the room, would leave a gap for good.
    table.add_listed("red", 1, second)
    assert table.last_us("red") == 0


def test_prompts_without_an_answer_take_no_memory(monkeypatch):
    monkeypatch.setattr(answer_vectors, "_BLOCK_VALUES", 4 * 24)
    table = filled(random_vectors(4), most=4)
    for number in range(1_000):
        table.forget("blue", f"missing {number}")
    for number in range(4):
        table.forget("blue", str(number))
    assert table._tables["blue"].gone == {"0", "1", "2", "3"}
    for number, vector in enumerate(random_vectors(8), start=4):
        table.add("blue", str(number), number + 1, SCOPE, packed(vector))
    assert table._tables["blue"].gone == set()

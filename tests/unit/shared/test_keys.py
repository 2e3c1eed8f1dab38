"""Tests that every key has one row in the table and one function that builds it, and which names keys accept."""

import inspect

import pytest

from shared.store import key_table, keys


def functions() -> dict[str, object]:
    found = inspect.getmembers(keys, inspect.isfunction)
    return {name: function for name, function in found if name in key_table.BY_NAME}


def test_every_function_builds_the_key_of_its_row():
    for name, function in functions().items():
        row = key_table.BY_NAME[name]
        parts = [f"p{i}" for i in range(len(inspect.signature(function).parameters))]
        assert function(*parts) == row.of(".".join(parts))
        assert (row.part == "") == (not parts)


def test_every_key_that_is_not_rq_s_has_a_function():
    ours = {row.name for row in key_table.TABLE if not row.name.startswith("rq_")}
    assert ours <= set(functions())


def test_names_and_prefixes_are_unique_and_prefixes_begin_with_penstock_or_rq():
    assert len(key_table.BY_NAME) == len(key_table.TABLE) == len({row.of("part") for row in key_table.TABLE})
    for row in key_table.TABLE:
        assert row.prefix.startswith("rq:" if row.name.startswith("rq_") else "penstock:")
        assert row.prefix.endswith(":") == (row.part != "")


@pytest.mark.parametrize("name", ["a", "blue", "A-b_9", "x" * 64])
def test_tenant_names_are_letters_digits_dash_and_underscore(name):
    assert keys.is_tenant_name(name)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a\n", "ä", "x" * 65, "a:b", "../x", "a\x00"])
def test_any_other_text_is_not_a_tenant_name(name):
    assert not keys.is_tenant_name(name)


@pytest.mark.parametrize(
    ("model", "slug"),
    [
        ("m", "m"),
        ("org/repo:Q4_K_M", "org-repo-Q4_K_M"),
        ("a b\nc", "a-b-c"),
        ("Modell-ä", "Modell--"),
        ("v1.2", "v1.2"),
    ],
)
def test_a_model_s_slug_has_only_characters_that_a_queue_name_allows(model, slug):
    assert keys.model_slug(model) == slug
    assert keys.queue_name("blue", model) == f"blue.{slug}"


def test_tenant_and_model_can_be_read_out_of_a_queue_name():
    tenant, _, slug = keys.queue_name("blue", "v1.2/x").partition(".")
    assert (tenant, slug) == ("blue", "v1.2-x")

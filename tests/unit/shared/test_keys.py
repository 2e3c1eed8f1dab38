"""Every key has one home: a row, a function, and a sentence that says when it dies."""

import inspect

import pytest

from shared.store import keys


def functions() -> dict[str, object]:
    made = inspect.getmembers(keys, inspect.isfunction)
    return {name: function for name, function in made if name in keys.BY_NAME}


def test_every_function_makes_the_key_of_its_row():
    for name, function in functions().items():
        row = keys.BY_NAME[name]
        parts = [f"p{i}" for i in range(len(inspect.signature(function).parameters))]
        assert function(*parts) == row.prefix + ".".join(parts)
        assert (row.part == "") == (not parts)


def test_every_key_of_ours_has_a_function():
    ours = {row.name for row in keys.TABLE if not row.name.startswith("rq_")}
    assert ours <= set(functions())


def test_names_and_prefixes_are_unique_and_below_two_roots():
    assert len(keys.BY_NAME) == len(keys.TABLE) == len({row.prefix for row in keys.TABLE})
    for row in keys.TABLE:
        assert row.prefix.startswith("rq:" if row.name.startswith("rq_") else "penstock:")
        assert row.prefix.endswith(":") == (row.part != "")


@pytest.mark.parametrize("name", ["a", "blue", "A-b_9", "x" * 64])
def test_tenant_names_are_letters_digits_dash_and_underscore(name):
    assert keys.is_tenant_name(name)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a\n", "ä", "x" * 65, "a:b", "../x", "a\x00"])
def test_anything_else_names_no_tenant(name):
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
def test_a_models_slug_holds_no_more_than_a_queue_name_may(model, slug):
    assert keys.model_slug(model) == slug
    assert keys.queue_name("blue", model) == f"blue.{slug}"


def test_tenant_and_model_can_be_read_out_of_a_queue_name():
    tenant, _, slug = keys.queue_name("blue", "v1.2/x").partition(".")
    assert (tenant, slug) == ("blue", "v1.2-x")

"""Tests the form of the keys in the table, and which names keys accept."""

import pytest

from shared.store import keys


def test_a_key_has_the_words_of_its_variable_part_and_a_family_without_one_has_one_key():
    assert (keys.config(), keys.tenant("blue")) == ("penstock:config", "penstock:tenant:blue")
    assert keys.idem("blue", "digest") == "penstock:idem:blue.digest"
    assert keys.TABLE["rq_executions"]("gpu") == "rq:worker:gpu:executions"
    for call in (keys.tenant, lambda: keys.config("blue")):
        with pytest.raises(TypeError, match="penstock:"):
            call()


def test_patterns_are_unique_and_begin_with_penstock_and_the_key_s_name_or_with_rq():
    assert len({key.pattern for key in keys.TABLE.values()}) == len(keys.TABLE)
    for name, key in keys.TABLE.items():
        assert key.prefix.startswith("rq:" if name.startswith("rq_") else f"penstock:{name}")
        assert key.prefix.endswith(":") == (key.part != "")
        assert key.pattern == (f"{key.prefix}<{key.part}>{key.suffix}" if key.part else key.prefix)


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

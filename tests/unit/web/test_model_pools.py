"""Tests how models, their facts and their aliases are read from a snapshot of the store."""

import pytest

from shared.jobs import cost
from shared.jobs.prompt_weights import CHAT_COUNTS, TEXT_COUNTS
from shared.store.replies import Snapshot, WorkerView
from web.runtime.model_pools import Model, read_directory


def a_worker(model: str, *, live: bool = True, **facts: str) -> WorkerView:
    return WorkerView(f"w-{model}", model, live, 100, 4, 0, 100, 100, draining=False, facts=facts)


def a_snapshot(*workers: WorkerView, seen: list[str] | None = None) -> Snapshot:
    models = seen if seen is not None else [worker.model for worker in workers]
    return Snapshot(0, 0, 64, 0, 0, {}, [], list(workers), models, draining=False)


def test_a_model_is_live_while_one_of_its_workers_is_live() -> None:
    directory = read_directory(a_snapshot(a_worker("a"), a_worker("b", live=False), seen=["a", "b", "c"]))
    assert directory.live == ["a"]
    for name, live in (("a", True), ("b", False), ("c", False)):
        model = directory.find(name)
        assert model is not None
        assert model.live is live
    assert directory.find("d") is None


def test_adapters_are_models_but_no_bases_while_their_model_is_live() -> None:
    directory = read_directory(a_snapshot(a_worker("m"), a_worker("m:a", base="m"), a_worker("n:b", base="n")))
    assert directory.live == ["m", "m:a", "n:b"]
    assert directory.live_bases == ["m", "n:b"]


def test_prompt_tokens_are_words_for_the_sim_engine_and_estimated_from_bytes_for_others() -> None:
    directory = read_directory(
        a_snapshot(a_worker("sim", counts_words="true"), a_worker("m", engine="llama", tokens_per_byte="0.5"))
    )
    for name, tokens in (("sim", 4), ("m", 8)):
        model = directory.find(name)
        assert model is not None
        assert model.estimate({"prompt": "tell me a story!"}) == tokens


def test_prompt_tokens_are_estimated_with_the_weights_that_any_worker_of_the_model_publishes() -> None:
    weights = " ".join(["1"] + ["0"] * (TEXT_COUNTS - 1) + ["5", "2"] + ["0"] * (CHAT_COUNTS - 2))
    model = read_directory(a_snapshot(a_worker("m", prompt_weights=weights), a_worker("m"))).find("m")
    assert model is not None
    # Five words, two messages and the beginning of the prompt.
    chat = [{"role": "system", "content": "Be kind!"}, {"role": "user", "content": "tell me more"}]
    assert model.estimate({"messages": chat}) == 5 + 2 * 2 + 5
    assert model.estimate({"prompts": ["tell me more", [7, 8]]}) == 3 + 2
    forwarded = {"messages": chat, "forward": {}}
    assert model.estimate(forwarded) == cost.estimate(forwarded)


@pytest.mark.parametrize(
    ("payload", "tokens"),
    [
        ({"prompt": "a" * 4_000}, 512),
        ({"prompt": "a" * 400}, 200),
        ({"messages": [{"role": "user", "content": "a" * 4_000}]}, 512),
        ({"prompts": ["a" * 1_000, "b" * 1_000]}, 512),
        ({"input": ["a" * 4_000, "b" * 4_000]}, 1_024),
        ({"input": ["a" * 4_000, "b" * 100], "query": "c"}, 1_024),
    ],
)
def test_each_input_of_a_model_computes_at_most_the_tokens_that_its_context_holds(payload, tokens) -> None:
    directory = read_directory(
        a_snapshot(
            a_worker("m", engine="llama", tokens_per_byte="0.5", n_ctx="512"),
            a_worker("endless", engine="llama", tokens_per_byte="0.5"),
        )
    )
    model, endless = directory.find("m"), directory.find("endless")
    assert model is not None
    assert endless is not None
    assert model.computed(payload) == tokens
    assert endless.computed(payload) == endless.estimate(payload) == model.estimate(payload)


def test_a_model_s_context_size_is_the_largest_of_its_workers() -> None:
    directory = read_directory(
        a_snapshot(a_worker("m", n_ctx="512"), a_worker("m", n_ctx="2048"), a_worker("m", n_ctx="junk"))
    )
    model = directory.find("m")
    assert model is not None
    assert model.n_ctx == 2048


def test_invalid_facts_of_a_worker_are_ignored() -> None:
    model = read_directory(a_snapshot(a_worker("m", n_ctx="-5", tokens_per_byte="nan"))).find("m")
    assert model is not None
    assert (model.n_ctx, model.tokens_per_byte) == (None, 0.3)


def test_a_model_is_found_by_each_of_its_aliases() -> None:
    directory = read_directory(a_snapshot(a_worker("m", aliases="small, gpt-small")))
    for alias in ("small", "gpt-small"):
        model = directory.find(alias)
        assert model is not None
        assert model.name == "m"


def test_a_model_is_passed_on_only_if_all_its_workers_pass_it_on() -> None:
    directory = read_directory(
        a_snapshot(
            a_worker("a", forwards="true"),
            a_worker("b", forwards="true"),
            a_worker("b", forwards="false"),
            a_worker("c", live=False, forwards="true"),
        )
    )
    assert {name: model.forwards for name, model in directory.models.items()} == {"a": True, "b": False, "c": None}


@pytest.mark.parametrize(
    ("facts", "gives_one"),
    [
        ([{"forwards": "true", "forwards_several": "true"}], False),
        ([{"forwards": "true"}], True),
        ([{"forwards": "true", "forwards_several": "true"}, {"forwards": "true"}], True),
        ([{"forwards": "false"}, {"forwards": "true"}], True),
        ([{"forwards": "false"}, {"forwards": "true", "forwards_several": "true"}], False),
        ([{}], False),
    ],
)
def test_a_model_gives_one_answer_while_one_of_its_upstreams_workers_is_of_an_earlier_version(
    facts: list[dict[str, str]], gives_one: bool
) -> None:
    model = read_directory(a_snapshot(*(a_worker("m", **each) for each in facts))).find("m")
    assert model is not None
    assert model.gives_one_answer is gives_one


@pytest.mark.parametrize(
    ("facts", "longest"),
    [
        ([{"n_ctx": "512"}], 512),
        ([{"n_ctx": "1073741824"}], None),
        ([{"n_ctx": "1073741824", "upstream_max_model_len": "4096"}], 4096),
        ([{"n_ctx": "1000", "upstream_max_model_len": "4096"}], 1000),
        ([{"n_ctx": "512"}, {"n_ctx": "1073741824", "upstream_max_model_len": "4096"}], 4096),
        ([{"n_ctx": "junk"}], None),
    ],
)
def test_the_longest_job_that_clients_are_told_is_the_workers_or_the_upstreams(
    facts: list[dict[str, str]], longest: int | None
) -> None:
    model = read_directory(a_snapshot(*(a_worker("m", **each) for each in facts))).find("m")
    assert model is not None
    assert model.max_model_len == longest


@pytest.mark.parametrize("prompts", [2, 0])
def test_a_prompt_of_an_upstream_that_seems_too_long_is_counted_whole(prompts: int) -> None:
    model = Model("m", live=True, forwards=True, n_ctx=10)
    payload: dict[str, object] = {"prompts": ["x" * 900] * prompts}
    if not prompts:
        payload |= {"messages": [{"role": "user", "content": "x" * 900}], "forward": {}}
    assert model.computed(payload) == model.estimate(payload) > 200


def test_all_prompts_of_a_job_have_one_context_of_our_engine() -> None:
    assert Model("m", live=True, n_ctx=10).computed({"prompts": ["x" * 900] * 2}) == 10

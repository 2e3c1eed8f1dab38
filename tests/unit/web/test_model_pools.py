"""Which model a request means."""

from shared.store.replies import Snapshot, WorkerView
from web.runtime.model_pools import read_directory


def a_worker(model: str, *, live: bool = True, **facts: str) -> WorkerView:
    return WorkerView(f"w-{model}", model, live, 100, 4, 0, 100, 100, draining=False, facts=facts)


def a_snapshot(*workers: WorkerView, seen: list[str] | None = None) -> Snapshot:
    models = seen if seen is not None else [worker.model for worker in workers]
    return Snapshot(0, 0, 64, 0, 0, {}, [], list(workers), models, draining=False)


def test_a_model_is_live_while_one_of_its_workers_is() -> None:
    picture = read_directory(a_snapshot(a_worker("a"), a_worker("b", live=False), seen=["a", "b", "c"]))
    assert picture.live == ["a"]
    for name, live in (("a", True), ("b", False), ("c", False)):
        model = picture.find(name)
        assert model is not None
        assert model.live is live
    assert picture.find("d") is None


def test_the_sim_engine_counts_words_and_others_are_estimated() -> None:
    picture = read_directory(
        a_snapshot(a_worker("sim", engine="sim"), a_worker("m", engine="llama", tokens_per_byte="0.5"))
    )
    for name, tokens in (("sim", 4), ("m", 8)):
        model = picture.find(name)
        assert model is not None
        assert model.estimate({"prompt": "tell me a story!"}) == tokens


def test_the_longest_context_of_a_model_s_workers_counts() -> None:
    picture = read_directory(
        a_snapshot(a_worker("m", n_ctx="512"), a_worker("m", n_ctx="2048"), a_worker("m", n_ctx="junk"))
    )
    model = picture.find("m")
    assert model is not None
    assert model.n_ctx == 2048


def test_what_a_worker_does_not_tell_is_not_guessed() -> None:
    model = read_directory(a_snapshot(a_worker("m", n_ctx="-5", tokens_per_byte="nan"))).find("m")
    assert model is not None
    assert (model.n_ctx, model.tokens_per_byte) == (None, 0.3)


def test_an_alias_leads_to_its_model() -> None:
    picture = read_directory(a_snapshot(a_worker("m", aliases="small, gpt-small")))
    for alias in ("small", "gpt-small"):
        model = picture.find(alias)
        assert model is not None
        assert model.name == "m"

"""Tests the models that the playground of the console offers, and what stands beside those that no worker serves."""

from shared.store.replies import PoolReason, PoolView
from web.console.playground import Target, list_targets
from web.runtime.model_pools import Model, ModelDirectory


def test_served_models_come_first_and_models_of_vectors_are_left_out():
    models = [Model("a", live=False), Model("b", live=True), Model("c", live=True, loaded=False)]
    pools = {name: PoolView(name, 0, 1, None, 0, 0, 4, None) for name in ("b", "c", "e")}
    vectors = Model("e", live=True, pooling="mean")
    directory = ModelDirectory({each.name: each for each in [*models, vectors]}, {}, pools=pools)
    assert list_targets(directory) == [Target("b", ""), Target("c", "loaded on demand"), Target("a", "no worker")]
    draining = ModelDirectory(
        {"b": models[1]}, {}, pools={"b": PoolView("b", 0, 1, PoolReason.DRAINING, 0, 0, 4, None)}
    )
    assert list_targets(draining) == [Target("b", "draining")]

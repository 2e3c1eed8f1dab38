"""Two pools behind one door: a model's name or alias chooses the pool, and only live models are listed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.processes import Process, Stage, wait_for
from tests.support.served import Served
from workers.demo.random_gguf import write_random_model
from workers.exit_codes import ExitCode

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

pytestmark = pytest.mark.ways("direct", reason="these tests are about which worker gets a job, and when")

GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_random_model(folder / "north.gguf", seed=1)
    write_random_model(folder / "south.gguf", seed=2)
    return folder


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path, PENSTOCK_ENGINE="llama", PENSTOCK_KV_CELLS="2048", PENSTOCK_N_CTX="512") as stage:
        yield stage


@pytest.fixture
def served(stage: Stage) -> Iterator[Served]:
    with Served(stage) as served:
        yield served


def start_pool(stage: Stage, models: Path, name: str, **environ: str) -> Process:
    return stage.worker(PENSTOCK_MODEL=str(models / f"{name}.gguf"), **environ)


def answer_text(served: Served, **fields: object) -> str:
    answer = served.http.post("/v1/jobs?wait_ms=30000", json={"prompt": "dibo kufe", **GREEDY, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "succeeded", answer.text
    generated: str = answer.json()["text"]
    return generated


def model_names(served: Served) -> list[str]:
    return [model["id"] for model in served.http.get("/v1/models").json()["data"]]


def test_a_models_name_or_alias_chooses_its_pool(stage: Stage, served: Served, models: Path) -> None:
    start_pool(stage, models, "north")
    start_pool(stage, models, "south", PENSTOCK_MODEL_NAME="deep/south, gpt-south")
    wait_for(lambda: model_names(served) == ["deep/south", "north", "gpt-south"], "both models to be listed")
    north, south = answer_text(served, model="north"), answer_text(served, model="deep/south")
    assert north != south
    assert answer_text(served, model="gpt-south") == south
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        for model, expected in (("north", north), ("deep/south", south), ("gpt-south", south)):
            answer = client.completions.create(model=model, prompt="dibo kufe", **GREEDY)  # type: ignore[call-overload]
            assert answer.choices[0].text == expected
    unnamed = served.http.post("/v1/jobs", json={"prompt": "x"})
    assert unnamed.status_code == 400
    assert unnamed.json()["error"]["message"].endswith("one of deep/south, north")
    stage.assert_sound()


def test_an_unknown_model_is_404_and_one_without_live_workers_is_a_yield(
    stage: Stage, served: Served, models: Path
) -> None:
    start_pool(stage, models, "north")
    gone = start_pool(stage, models, "south")
    assert answer_text(served, model="south")
    gone.kill()
    wait_for(lambda: model_names(served) == ["north"], "the killed worker's model to be listed no longer")
    refused = served.submit(model="south")
    assert (refused.status_code, refused.json()["reason"]) == (503, "no_worker")
    unknown = served.submit(model="west")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert answer_text(served, model="north") == answer_text(served)
    start_pool(stage, models, "south")
    wait_for(lambda: "south" in model_names(served), "the model to be listed again")
    assert answer_text(served, model="south")
    stage.assert_sound()


def test_a_worker_whose_model_name_collides_with_another_in_the_store_does_not_start(stage: Stage) -> None:
    sim = {"PENSTOCK_ENGINE": "sim"}
    stage.worker(**sim, PENSTOCK_MODEL_NAME="deep/south")
    again = stage.worker(**sim, PENSTOCK_MODEL_NAME="deep/south")
    other = stage.worker(wait=False, **sim, PENSTOCK_MODEL_NAME="deep:south")
    assert other.exit_code() == ExitCode.CONFIG
    assert "PENSTOCK_MODEL_NAME='deep:south'" in other.log.read_text()
    assert "'deep/south'" in other.log.read_text()
    assert again.alive


def test_an_answer_without_a_length_or_with_one_beyond_the_context_fills_the_context(
    stage: Stage, served: Served, models: Path
) -> None:
    """The prompt of 495 words fits into the context, but the door cannot know how many tokens it has."""
    start_pool(stage, models, "north")
    prompt = "bi " * 495
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        for length in (None, 16, 32_000):
            cut = client.completions.create(model="north", prompt=prompt, temperature=0, max_tokens=length)
            assert cut.usage is not None
            assert cut.usage.prompt_tokens + cut.usage.completion_tokens == 512
            assert cut.choices[0].finish_reason == "length"
    stage.assert_sound()

"""LoRA adapters of one model are served as models of their own, by one worker and at the same time."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import llama_cpp
import openai
import pytest

from tests.support.lora import write_lora
from tests.support.processes import Stage
from tests.support.served import Served
from workers.demo.random_gguf import write_random_model

NAMES = ("m", "m:formal", "m:brief")
PROMPTS = ("bado keli mupa", "soni tiva", "du")
TOKENS = 12


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    write_random_model(folder / "m.gguf")
    for seed, name in enumerate(("formal", "brief")):
        write_lora(folder / f"{name}.gguf", folder / "m.gguf", seed=seed)
    return folder


@pytest.fixture(scope="module")
def served(files, tmp_path_factory) -> Iterator[Served]:
    adapters = f"formal={files}/formal.gguf,brief={files}/brief.gguf:0.5"
    with Stage(tmp_path_factory.mktemp("stage"), PENSTOCK_ENGINE="llama", PENSTOCK_ADMISSION="bounds") as stage:
        stage.worker(PENSTOCK_MODEL=str(files / "m.gguf"), PENSTOCK_ADAPTERS=adapters, PENSTOCK_MAX_BATCH_SIZE="4")
        with Served(stage) as served:
            yield served
        stage.assert_sound()


@pytest.fixture(scope="module")
def reference(files) -> dict[tuple[str, str], str]:
    """The texts that `llama_cpp.Llama` generates, by the model's name and the prompt."""
    found = {}
    for name in NAMES:
        adapter = name.partition(":")[2]
        lora = (
            {"lora_path": str(files / f"{adapter}.gguf"), "lora_scale": {"formal": 1.0, "brief": 0.5}[adapter]}
            if adapter
            else {}
        )
        with contextlib.closing(
            llama_cpp.Llama(str(files / "m.gguf"), n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False, **lora)
        ) as llama:
            for prompt in PROMPTS:
                found[name, prompt] = llama(prompt, max_tokens=TOKENS, temperature=0)["choices"][0]["text"]
    return found


def complete(served: Served, model: str, prompt: str) -> httpx.Response:
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    return httpx.post(f"{served.url}/v1/completions", json=body, timeout=120)


def test_answers_of_all_models_at_the_same_time_are_those_of_llama_cpp_with_the_adapter(served, reference):
    asked = [(name, prompt) for prompt in PROMPTS for name in NAMES] * 2
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda each: complete(served, *each), asked))
    for each, answer in zip(asked, answers, strict=True):
        assert (answer.status_code, answer.json()["model"]) == (200, each[0]), answer.text
        assert answer.json()["choices"][0]["text"] == reference[each], each
    assert len({reference[name, PROMPTS[0]] for name in NAMES}) == len(NAMES)


def test_a_stock_client_lists_the_adapters_with_the_model_to_which_they_belong(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        models = {model.id: model for model in client.models.list()}
        assert client.models.retrieve("m:brief").id == "m:brief"
    assert {name: getattr(model, "parent", None) for name, model in models.items()} == {
        "m": None,
        "m:formal": "m",
        "m:brief": "m",
    }


def test_a_request_that_names_no_model_goes_to_the_base(served):
    answer = httpx.post(f"{served.url}/v1/completions", json={"prompt": "bado", "max_tokens": 2}, timeout=120)
    assert (answer.status_code, answer.json()["model"]) == (200, "m")


def test_an_adapter_that_does_not_exist_is_an_unknown_model(served):
    answer = complete(served, "m:rude", "bado")
    assert answer.status_code == 404
    assert "m:rude" in answer.text

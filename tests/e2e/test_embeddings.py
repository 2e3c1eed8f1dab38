"""Embeddings through the stock `openai` package, and ranking: the door, the store and a worker with a real model."""

import base64
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI

from tests.support.processes import Stage, wait_for
from tests.support.served import Address, Served

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from gguf import PoolingType  # noqa: E402 - one of the engine's packages

from tests.support.bert import write_bert  # noqa: E402 - needs the engine's packages
from web.openapi import compatible_models  # noqa: E402 - after the check of the engine's packages
from workers.demo.random_gguf import write_random_model  # noqa: E402 - needs the engine's packages

pytestmark = pytest.mark.ways(
    "direct", reason="the requests differ from others only in their answers, which are not streamed"
)

TEXTS = ["ba dedi", "foku gali muna", "pesi"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_bert(folder / "vectors.gguf")
    write_bert(folder / "ranks.gguf", pooling=PoolingType.RANK)
    write_random_model(folder / "words.gguf")
    return folder


@pytest.fixture(scope="module")
def common(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Stage(
        tmp_path_factory.mktemp("embeddings"), PENSTOCK_ENGINE="llama", PENSTOCK_N_CTX="64", PENSTOCK_ADMISSION="bounds"
    ) as stage:
        stage.worker(PENSTOCK_MODEL=str(folder / "vectors.gguf"))
        stage.worker(PENSTOCK_MODEL=str(folder / "ranks.gguf"))
        stage.worker(PENSTOCK_MODEL=str(folder / "words.gguf"), PENSTOCK_KV_CELLS="512")
        with Served(stage) as served:
            wait_for(lambda: len(served.http.get("/v1/models").json()["data"]) == 3, "all models")
            yield served


@pytest.fixture(scope="module")
def direct_vectors(folder: Path) -> dict[str, list[float]]:
    """The vector that `llama_cpp.Llama` computes for each text."""
    path = str(folder / "vectors.gguf")
    with contextlib.closing(
        llama_cpp.Llama(path, n_ctx=64, n_batch=64, n_threads=1, n_threads_batch=1, embedding=True, verbose=False)
    ) as llama:
        return {text: llama.embed(text, normalize=True) for text in TEXTS}


def test_embeddings_equal_those_of_the_model_used_directly(
    client: OpenAI, direct_vectors: dict[str, list[float]]
) -> None:
    answer = client.embeddings.create(model="vectors", input=TEXTS)
    assert [item.index for item in answer.data] == [0, 1, 2]
    for item, text in zip(answer.data, TEXTS, strict=True):
        np.testing.assert_allclose(item.embedding, direct_vectors[text], atol=2e-4)
    assert answer.model == "vectors"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
    one = client.embeddings.create(model="vectors", input=TEXTS[1])
    assert len(one.data) == 1
    np.testing.assert_allclose(one.data[0].embedding, direct_vectors[TEXTS[1]], atol=2e-4)


def test_floats_and_base64_encode_the_same_vector(served: Address) -> None:
    request_fields = {"model": "vectors", "input": TEXTS[0]}
    plain, packed = (
        served.http.post("/v1/embeddings", json=request_fields | {"encoding_format": kind}).json()["data"][0][
            "embedding"
        ]
        for kind in ("float", "base64")
    )
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(packed), "<f4"), plain, atol=1e-6)
    assert len(plain) == 32


def test_one_or_several_lists_of_token_ids_are_embedded(client: OpenAI) -> None:
    one = client.embeddings.create(model="vectors", input=[2, 7, 9, 3])
    several = client.embeddings.create(model="vectors", input=[[2, 7, 9, 3], [2, 8, 3]])
    np.testing.assert_allclose(several.data[0].embedding, one.data[0].embedding, atol=2e-4)
    assert (one.usage.prompt_tokens, several.usage.prompt_tokens) == (4, 7)


def test_a_request_is_one_job_for_any_number_of_texts(client: OpenAI, served: Address) -> None:
    before = served.stage.stat("admitted")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.embeddings.create(model="vectors", input=TEXTS * 60), range(4)))
    assert served.stage.stat("admitted") == before + 4
    assert all(len(answer.data) == 180 for answer in answers)


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "words"}, openai.BadRequestError, "model"),
        ({"dimensions": 33}, openai.BadRequestError, "dimensions"),
        ({"dimensions": 0}, openai.BadRequestError, "dimensions"),
        ({"input": [2, 10**6]}, openai.BadRequestError, "input"),
        ({"input": "ba " * 100}, openai.BadRequestError, "input"),
        ({"input": [[2, 10**9]]}, openai.BadRequestError, "input"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"input": ["ba", ""]}, openai.BadRequestError, "input"),
        ({"input": ["ba", 3]}, openai.BadRequestError, "input"),
        ({"encoding_format": "int8"}, openai.BadRequestError, "encoding_format"),
        ({"extra_body": {"truncate": True}}, openai.BadRequestError, "truncate"),
        ({"model": "nope"}, openai.NotFoundError, "model"),
    ],
)
def test_a_request_that_cannot_be_served_raises_the_packages_error_class(
    client: OpenAI, fields: dict[str, object], error: type[openai.APIStatusError], param: str | None
) -> None:
    with pytest.raises(error) as caught:
        client.embeddings.create(**({"model": "vectors", "input": "ba"} | fields))  # type: ignore[arg-type]
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["param"] == param


def test_vectors_are_cut_to_the_dimensions_that_the_client_names(
    client: OpenAI, direct_vectors: dict[str, list[float]]
) -> None:
    for dimensions in (8, 32):
        answer = client.embeddings.create(model="vectors", input=TEXTS[0], dimensions=dimensions)
        part = np.array(direct_vectors[TEXTS[0]][:dimensions])
        np.testing.assert_allclose(answer.data[0].embedding, part / np.linalg.norm(part), atol=2e-4)


def rank(served: Served, **fields: Any) -> httpx.Response:
    body = {"model": "ranks", "query": TEXTS[0], "documents": TEXTS} | fields
    return served.http.post("/v1/rerank", json=body)


def test_documents_are_returned_in_the_order_of_their_scores(served: Served) -> None:
    body = rank(served, documents=[*TEXTS, "muna tora"], return_documents=True).json()
    compatible_models.Ranking.model_validate(body)
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert sorted(result["index"] for result in body["results"]) == [0, 1, 2, 3]
    for result in body["results"]:
        assert result["document"]["text"] == [*TEXTS, "muna tora"][result["index"]]
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 8
    best = rank(served, documents=[{"text": text} for text in [*TEXTS, "muna tora"]], top_n=2).json()
    assert best["results"] == [
        {name: result[name] for name in ("index", "relevance_score")} for result in body["results"][:2]
    ]


@pytest.mark.parametrize("path", ["/v2/rerank", "/rerank"])
def test_the_paths_of_other_servers_rank_documents_too(served: Served, path: str) -> None:
    body = {"model": "ranks", "query": TEXTS[0], "documents": TEXTS}
    results = served.http.post(path, json=body | {"user": "me"})
    assert results.json()["results"] == rank(served).json()["results"]
    assert results.headers["x-penstock-ignored"] == "user"
    assert served.http.post(path, json=body | {"documents": []}).status_code == 400


def test_documents_that_do_not_fit_are_cut_if_the_client_allows_it(served: Served) -> None:
    fits, long = "ba " * 10, "ba " * 10_000
    body = rank(served, documents=[fits, long, TEXTS[1]], truncation=True).json()
    assert sorted(result["index"] for result in body["results"]) == [0, 1, 2]
    assert rank(served, documents=[fits], truncation=False).is_success


def test_a_score_does_not_depend_on_the_other_documents(served: Served) -> None:
    together = {result["index"]: result["relevance_score"] for result in rank(served).json()["results"]}
    for index, text in enumerate(TEXTS):
        alone = rank(served, documents=[text]).json()["results"][0]["relevance_score"]
        assert alone == pytest.approx(together[index], abs=2e-4)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "words"}, "unsupported_parameter", "model"),
        ({"model": "vectors"}, "unsupported_parameter", "model"),
        ({"documents": []}, "invalid_value", "documents"),
        ({"documents": ["ba", ""]}, "invalid_value", "documents[1]"),
        ({"documents": ["ba", 3]}, "invalid_value", "documents[1]"),
        ({"documents": ["ba"] * 2049}, "invalid_value", "documents"),
        ({"documents": ["ba " * 100]}, "context_length_exceeded", "documents"),
        ({"query": ""}, "invalid_value", "query"),
        ({"query": "x" * 16_385}, "invalid_value", "query"),
        ({"top_n": 0}, "invalid_value", "top_n"),
        ({"rank_fields": ["text"]}, "unsupported_parameter", "rank_fields"),
    ],
)
def test_a_request_that_cannot_be_ranked_is_400(served: Served, fields: dict[str, Any], code: str, param: str) -> None:
    response = rank(served, **fields)
    assert response.status_code == 400, response.text
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == (code, param)


def test_a_ranking_model_neither_embeds_nor_answers(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="ranks documents: use /v1/rerank"):
        client.embeddings.create(model="ranks", input="ba")
    with pytest.raises(openai.BadRequestError, match="ranks documents: use /v1/rerank"):
        client.completions.create(model="ranks", prompt="ba")


def test_an_embedding_model_answers_no_prompt(client: OpenAI, served: Address) -> None:
    with pytest.raises(openai.BadRequestError, match="makes embeddings: use /v1/embeddings"):
        client.completions.create(model="vectors", prompt="ba")
    refused = served.submit(model="vectors")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_parameter")

"""Tests of embeddings: they equal those of llama.cpp alone beside any other jobs, and a job gets all or none."""

import base64
import contextlib
import math
import random

import numpy as np
import pytest
from gguf import PoolingType

from shared.errors import ModelError
from shared.jobs.outcomes import EndCode
from shared.settings.settings import load
from tests.support.bert import write_bert
from tests.support.cpu_time import cpu_time_below
from tests.support.driven import Driven
from tests.support.embedding_llama import embedding_llama
from tests.support.gguf_copy import copy_gguf
from workers.engine.events import JobRejected, JobSpec
from workers.engine.factory import make_engine
from workers.engine.llama.backend import load_backend
from workers.engine.llama.embedding import EmbeddingBackend

POOLINGS = {"mean": PoolingType.MEAN, "cls": PoolingType.CLS, "last": PoolingType.LAST}
WORDS = ["ba", "dedi", "foku", "gali", "muna", "pesi", "tora"]


KINDS = [("bert", "cls"), ("bert", "mean"), ("llama", "mean"), ("llama", "last")]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def model(request, model_path, tmp_path_factory):
    """The path and the pooling of an encoder, or of a llama whose file names a pooling."""
    kind, pooling = request.param
    path = tmp_path_factory.mktemp("embedding") / f"{kind}-{pooling}.gguf"
    if kind == "bert":
        write_bert(path, pooling=POOLINGS[pooling])
    else:
        copy_gguf(model_path, path, pooling_type=POOLINGS[pooling].value)
    return path, pooling


@pytest.fixture(scope="module")
def backend(model):
    path, pooling = model
    backend = load_backend(load({}, None, device="cpu", max_batch_size=3, threads=1, prefill_chunk=64, n_ctx=64), path)
    assert isinstance(backend, EmbeddingBackend)
    assert (backend.facts.pooling, backend.facts.n_ctx) == (pooling, 64)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def reference(model):
    """A function that returns the vector and the number of tokens that `llama_cpp.Llama` gives for a text."""
    path, pooling = model
    kind = POOLINGS[pooling].value
    llama = embedding_llama(path, kind)
    yield lambda text: llama.embed(text, normalize=True, return_count=True)
    llama.close()


def vectors(ended):
    assert (ended.outcome, ended.text) == ("succeeded", ""), ended
    return [np.frombuffer(base64.b64decode(vector), "<f4") for vector in ended.extra["embeddings"]]


def texts(seed, n):
    dice = random.Random(seed)
    return [" ".join(dice.choices(WORDS, k=dice.randint(1, 12))) for _ in range(n)]


def test_many_inputs_of_several_jobs_get_their_reference_embeddings(driven, reference):
    jobs = {str(i): texts(i, n) for i, n in enumerate([1, 12, 7, 40, 2])}
    for key, inputs in jobs.items():
        driven.submit(key, {"input": inputs, "max_tokens": 1})
    driven.run_until_idle()
    for key, inputs in jobs.items():
        ended = driven.ended[key]
        counts = 0
        for vector, text in zip(vectors(ended), inputs, strict=True):
            expected, n = reference(text)
            np.testing.assert_allclose(vector, expected, atol=2e-4)
            assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
            counts += n
        assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (counts, 0)


def test_inputs_are_computed_as_before_by_an_engine_that_drafts(backend, reference):
    (text,) = texts(1, 1)
    with contextlib.closing(Driven(backend, speculates=True)) as driven:
        driven.submit("a", {"input": [text, text], "max_tokens": 1})
        driven.run_until_idle()
        for vector in vectors(driven.ended["a"]):
            np.testing.assert_allclose(vector, reference(text)[0], atol=2e-4)


def test_token_ids_are_embedded_unchanged(driven, backend):
    text = "ba dedi foku"
    tokens = backend._vocab.tokenize(text, add_special=True, parse_special=False).tolist()
    driven.submit("a", {"input": [text, tokens], "max_tokens": 1})
    driven.run_until_idle()
    as_text, as_tokens = vectors(driven.ended["a"])
    np.testing.assert_allclose(as_text, as_tokens, atol=1e-5)
    assert driven.ended["a"].usage.prompt_tokens == 2 * len(tokens)


def test_a_canceled_job_has_no_vectors_and_the_others_have_theirs(driven):
    driven.submit("long", {"input": texts(1, 200), "max_tokens": 1})
    driven.submit("short", {"input": ["ba"], "max_tokens": 1})
    driven.engine.step()
    driven.engine.cancel("long")
    driven.run_until_idle()
    assert (driven.ended["long"].outcome, driven.ended["long"].extra) == ("canceled", {})
    assert len(vectors(driven.ended["short"])) == 1


@pytest.mark.parametrize(
    ("payload", "code", "message"),
    [
        ({"prompt": "x"}, EndCode.INVALID_VALUE, "this model makes embeddings"),
        ({"input": []}, EndCode.INVALID_VALUE, "this model makes embeddings"),
        ({"input": [1, 2]}, EndCode.INVALID_VALUE, "input[0] is neither a text nor a list of token ids"),
        ({"input": ["ba", []]}, EndCode.INVALID_VALUE, "input[1] is empty"),
        ({"input": [[1, 10**6]]}, EndCode.INVALID_VALUE, "input[0] contains token 1000000"),
        (
            {"input": ["ba", "ba " * 100]},
            EndCode.CONTEXT_LENGTH_EXCEEDED,
            "maximum context length is 64 tokens, and input[1] has ",
        ),
    ],
)
def test_input_that_cannot_be_embedded_is_rejected_with_the_reason(driven, payload, code, message):
    with pytest.raises(JobRejected) as caught:
        driven.engine.prepare(JobSpec("a", "blue", payload, 1, math.inf))
    assert (caught.value.code, message in caught.value.message) == (code, True), caught.value.message


def test_a_new_embedding_engine_has_measured_its_rate(model):
    engine = make_engine(load({}, None, device="cpu", threads=1), print, model_path=model[0])
    facts = engine.backend.facts
    assert facts.prefill_tps > 0
    assert facts.decode_tps == pytest.approx(facts.prefill_tps / 4, abs=0.1)
    engine.check_idle()
    engine.backend.close()


def test_the_pooling_setting_applies_if_the_model_file_names_none(model_path):
    backend = load_backend(load({}, None, device="cpu", pooling="last", threads=1), model_path)
    assert backend.facts.pooling == "last"
    backend.close()


def test_a_megabyte_of_text_outside_the_vocabulary_is_rejected_within_seconds(model_path):
    backend = load_backend(load({}, None, device="cpu", pooling="mean", threads=1), model_path)
    with contextlib.closing(backend), cpu_time_below(5), pytest.raises(JobRejected) as rejected:
        backend.prepare(JobSpec("a", "blue", {"input": ["ba", "\n" * 1_000_000]}, 1, math.inf))
    assert rejected.value.code == EndCode.CONTEXT_LENGTH_EXCEEDED
    assert rejected.value.message.endswith("input[1] has at least 1000000 tokens")


def test_an_encoder_without_pooling_is_refused_and_the_error_lists_the_usable_poolings(tmp_path):
    write_bert(tmp_path / "bert.gguf")
    with pytest.raises(ModelError, match="PENSTOCK_POOLING=mean, cls or last it makes embeddings"):
        load_backend(load({}, None, device="cpu", pooling="none"), tmp_path / "bert.gguf")


@pytest.mark.parametrize("dimensions", [1, 7, 32])
def test_a_vector_that_is_cut_has_length_one_again(tmp_path, dimensions):
    write_bert(tmp_path / "bert.gguf")
    backend = load_backend(load({}, None, device="cpu", threads=1), tmp_path / "bert.gguf")
    with contextlib.closing(backend), contextlib.closing(Driven(backend)) as driven:
        driven.submit("whole", {"input": texts(1, 3), "max_tokens": 1})
        driven.submit("cut", {"input": texts(1, 3), "max_tokens": 1, "dimensions": dimensions})
        driven.run_until_idle()
        for whole, cut in zip(vectors(driven.ended["whole"]), vectors(driven.ended["cut"]), strict=True):
            part = whole[:dimensions]
            np.testing.assert_allclose(cut, part / np.linalg.norm(part), atol=2e-4)
        for wrong in (0, 33, "7", True):
            with pytest.raises(JobRejected) as caught:
                driven.submit("wrong", {"input": ["ba"], "dimensions": wrong})
            assert (caught.value.code, caught.value.param) == (EndCode.UNSUPPORTED_PARAMETER, "dimensions")

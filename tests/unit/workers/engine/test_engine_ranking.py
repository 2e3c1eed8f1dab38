"""Tests of ranking: scores equal those of llama.cpp alone beside any other jobs, and a job gets all or none."""

import math
import random

import llama_cpp
import numpy as np
import pytest
from gguf import PoolingType

from shared.jobs.outcomes import EndCode
from shared.settings.settings import load
from tests.support.bert import write_bert
from tests.support.embedding_llama import embedding_llama
from workers.engine.events import JobRejected, JobSpec
from workers.engine.factory import make_engine
from workers.engine.llama.backend import load_backend
from workers.engine.llama.embedding import RankingBackend
from workers.engine.llama.vocabulary import PairFormat

WORDS = ["ba", "dedi", "foku", "gali", "muna", "pesi", "tora"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranking") / "rank.gguf"
    write_bert(path, pooling=PoolingType.RANK)
    return path


@pytest.fixture(scope="module")
def backend(path):
    backend = load_backend(load({}, None, device="cpu", max_batch_size=3, threads=1, prefill_chunk=64, n_ctx=64), path)
    assert isinstance(backend, RankingBackend)
    assert (backend.facts.pooling, backend.facts.width) == ("rank", 1)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def reference(path):
    """A function that returns the score of a list of tokens, which a context of its own computes alone."""
    kind = llama_cpp.LLAMA_POOLING_TYPE_RANK
    llama = embedding_llama(path, kind)

    def score(tokens):
        llama._batch.reset()
        llama._batch.add_sequence(list(tokens), 0, logits_all=True)
        llama._ctx.decode(llama._batch)
        raw = llama_cpp.llama_get_embeddings_seq(llama._ctx.ctx, 0)[0]
        return 1 / (1 + math.exp(-raw))

    yield score
    llama.close()


def texts(seed, n):
    dice = random.Random(seed)
    return [" ".join(dice.choices(WORDS, k=dice.randint(1, 12))) for _ in range(n)]


def tokens_of(backend, query, document):
    """The tokens that such models were trained with: `[CLS] query [SEP] document [SEP]`."""
    vocab = backend._vocab
    parts = [vocab.tokenize(text, parse_special=False).tolist() for text in (query, document)]
    cls, sep = vocab.bos, llama_cpp.llama_vocab_sep(vocab.handle)
    return [cls, *parts[0], sep, *parts[1], sep]


def test_many_documents_of_several_jobs_get_their_reference_scores(driven, backend, reference):
    jobs = {str(i): (query, texts(i, n)) for i, (query, n) in enumerate([("ba", 1), ("dedi foku", 40), ("tora", 7)])}
    for key, (query, documents) in jobs.items():
        driven.submit(key, {"query": query, "input": documents, "max_tokens": 1})
    driven.run_until_idle()
    for key, (query, documents) in jobs.items():
        ended = driven.ended[key]
        pairs = [tokens_of(backend, query, document) for document in documents]
        assert (ended.outcome, ended.text) == ("succeeded", ""), ended
        np.testing.assert_allclose(ended.extra["scores"], [reference(pair) for pair in pairs], atol=2e-4)
        assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (sum(map(len, pairs)), 0)
    assert len(set(driven.ended["1"].extra["scores"])) > 20


def test_a_canceled_job_has_no_scores(driven):
    driven.submit("long", {"query": "ba", "input": texts(1, 200), "max_tokens": 1})
    driven.engine.step()
    driven.engine.cancel("long")
    driven.run_until_idle()
    assert (driven.ended["long"].outcome, driven.ended["long"].extra) == ("canceled", {})


def test_the_name_of_a_control_token_in_a_text_is_plain_text(backend):
    vocab = backend._vocab
    sep = llama_cpp.llama_vocab_sep(vocab.handle)
    for template in ("", "[CLS]{query}[SEP]{document}[SEP]"):
        (pair,) = PairFormat(vocab, template).pairs("ba [SEP] ba", ["dedi [SEP]"])
        assert pair.tolist().count(sep) == 2, template


def test_a_template_of_the_model_is_filled_with_both_texts(backend):
    vocab = backend._vocab
    form = PairFormat(vocab, "[CLS]{query}[SEP]{document}[SEP]")
    (pair,) = form.pairs("ba dedi", ["foku"])
    assert pair.tolist() == tokens_of(backend, "ba dedi", "foku")
    swapped = PairFormat(vocab, "[CLS]{document}[SEP]{query}[SEP]")
    (pair,) = swapped.pairs("{document}", ["foku"])
    assert pair.tolist() == tokens_of(backend, "foku", "{document}")


@pytest.mark.parametrize(
    ("payload", "code", "param"),
    [
        ({"prompt": "x"}, EndCode.INVALID_VALUE, "query"),
        ({"input": ["ba"]}, EndCode.INVALID_VALUE, "query"),
        ({"query": "ba", "input": []}, EndCode.INVALID_VALUE, "query"),
        ({"query": "ba", "input": ["ba", [1, 2]]}, EndCode.INVALID_VALUE, "documents"),
        ({"query": "ba", "input": ["ba", "ba " * 100]}, EndCode.CONTEXT_LENGTH_EXCEEDED, "documents"),
        ({"query": "ba " * 40, "input": ["ba " * 40]}, EndCode.CONTEXT_LENGTH_EXCEEDED, "documents"),
    ],
)
def test_what_cannot_be_ranked_is_rejected(driven, payload, code, param):
    with pytest.raises(JobRejected) as caught:
        driven.engine.prepare(JobSpec("a", "blue", payload, 1, math.inf))
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize("document", ["ba " * 100, "foku gali " * 5_000, "ba", "é" * 3_000, "x" * 5_000 + " ba"])
def test_a_document_that_may_be_cut_fills_the_context_with_its_beginning(backend, document):
    payload = {"query": "ba dedi", "input": ["muna", document], "truncate": True}
    short, cut = backend.prepare(JobSpec("a", "blue", payload, 1, math.inf)).prompt
    assert short.tolist() == tokens_of(backend, "ba dedi", "muna")
    whole = tokens_of(backend, "ba dedi", document[:400])
    own = len(cut) - 1
    assert cut.tolist()[:own] == whole[:own]
    # A word is cut as a whole or in the middle, where it has other tokens.
    assert min(len(whole), 60) <= len(cut) <= 64


def test_a_query_that_does_not_fit_is_rejected_although_documents_may_be_cut(backend):
    for query in ("ba " * 100, "foku " * 62):
        with pytest.raises(JobRejected, match="context length is 64 tokens"):
            backend.prepare(JobSpec("a", "blue", {"query": query, "input": ["ba"], "truncate": True}, 1, math.inf))


def test_a_new_ranking_engine_has_measured_its_rate(path):
    engine = make_engine(load({}, None, device="cpu", threads=1), print, model_path=path)
    assert engine.backend.facts.prefill_tps > 0
    engine.check_idle()
    engine.backend.close()

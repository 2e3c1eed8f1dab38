"""cohere: documents in the order of a query, by both versions of its interface."""

import os

import cohere
from check import BASE_URL, KEY, check, main

RANKER = os.environ["CHECKED_RANKER"]
HOST = BASE_URL.removesuffix("/v1")
DOCUMENTS = ["bafo deki", "gumo nale", "pusa todi"]


@check("rerank, version 2")
def _v2() -> None:
    client = cohere.ClientV2(KEY, base_url=HOST)
    found = client.rerank(model=RANKER, query="bafo", documents=DOCUMENTS, top_n=2)
    assert len(found.results) == 2
    assert found.results[0].relevance_score >= found.results[1].relevance_score


@check("rerank, version 1")
def _v1() -> None:
    client = cohere.Client(KEY, base_url=HOST)
    found = client.rerank(model=RANKER, query="bafo", documents=DOCUMENTS, return_documents=True)
    assert {result.document.text for result in found.results} == set(DOCUMENTS)


main()

"""Tests of the turns of tenants whose documents are read in processes."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.support.processes import wait_for
from web.retrieval.parser_places import ParserPlaces, ParsersBusy

PLENTY_S = 60.0


def soon(seconds: float = PLENTY_S) -> float:
    return time.monotonic() + seconds


def test_a_tenant_has_one_place_however_many_documents_it_has():
    places = ParserPlaces(2)
    with places.place("red", soon()):
        said = "2 other documents are being read, or one of the tenant"
        with pytest.raises(ParsersBusy, match=said), places.place("red", soon(0.05)):
            pass
        with places.place("blue", soon()):
            pass
    with places.place("red", soon()):
        pass


def test_a_place_goes_to_the_first_document_whose_tenant_has_none():
    places, served = ParserPlaces(2), list[str]()

    def read(tenant: str) -> None:
        with places.place(tenant, soon()):
            served.append(tenant)

    with ThreadPoolExecutor(4) as pool, ExitStack() as first:
        first.enter_context(places.place("red", soon()))
        with places.place("green", soon()):
            reads = []
            for number, tenant in enumerate(("red", "red", "blue"), 1):
                reads.append(pool.submit(read, tenant))
                wait_for(lambda number=number: len(places._waiting) == number, "the document to wait")
            assert served == []
        reads[2].result(PLENTY_S)
        assert served == ["blue"]
        first.close()
        for each in reads:
            each.result(PLENTY_S)
    assert served == ["blue", "red", "red"]
    assert (places._free, places._served, list(places._waiting)) == (2, set(), [])


def test_a_document_that_gives_up_or_fails_leaves_no_place_taken():
    places = ParserPlaces(1)
    with places.place("red", soon()), pytest.raises(ParsersBusy), places.place("blue", soon(0)):
        pass
    with pytest.raises(ZeroDivisionError), places.place("red", soon()):
        raise ZeroDivisionError
    with places.place("red", soon()):
        pass

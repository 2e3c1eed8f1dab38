"""The console's pages of usage and of the audit log, and the CSV of usage."""

import csv
import io
from datetime import timedelta
from urllib.parse import quote

import pytest
import redis
from flask.testing import FlaskClient

from shared.accounts.admin_actions import Actor, record
from shared.accounts.usage import OTHER, Amounts, UsageRecords
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, heartbeat
from tests.support.console import ATTACK
from tests.support.door import fault


def use(client: redis.Redis, days_ago: int, series: str, amounts: str) -> str:
    """Store the usage of a day, and return the day."""
    day = (UsageRecords(client).today() - timedelta(days=days_ago)).isoformat()
    client.hset(keys.usage(day), series, amounts)
    client.expire(keys.usage(day), 86_400)
    return day


def test_usage_is_added_up_by_day_with_its_cost_and_as_csv(visitor: FlaskClient, redis_client: redis.Redis) -> None:
    use(redis_client, 40, "blue|laptop|m", "9 0 0 0 9 9 9 9")
    first = use(redis_client, 3, "blue|laptop|m", "4 1 0 0 1000 100 2000 1500000")
    use(redis_client, 3, "red||m", "1 0 0 0 10 0 20 0")
    last = use(redis_client, 1, "blue|ci|n", "2 0 0 0 200 0 400 250000")
    page = visitor.get("/console/usage").text
    assert page.index(f">{last}<") < page.index(f">{first}<")
    for text in (
        'data-label="Cost" class="n">1.75<',
        'data-label="Jobs" class="n">8<',
        'data-label="Answer" class="n">2,420<',
    ):
        assert text in page
    answer = visitor.get("/console/usage.csv", query_string={"by": "day,tenant", "from": first, "to": last})
    assert answer.headers["Content-Disposition"] == f'attachment; filename="usage-{first}-{last}.csv"'
    assert answer.content_type == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert list(rows[0]) == ["day", "tenant", *Amounts().as_dict()]
    assert [(row["day"], row["tenant"], row["requests"], row["cost_micro"]) for row in rows] == [
        (first, "blue", "5", "1500000"),
        (first, "red", "1", "0"),
        (last, "blue", "2", "250000"),
    ]
    of_red = visitor.get("/console/usage?by=tenant,model&tenant=red").text
    assert 'href="/console/tenants/red"' in of_red
    assert "blue" not in of_red


def test_the_surplus_of_a_day_with_too_many_series_leads_to_no_page_of_a_tenant(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    use(redis_client, 2, f"{OTHER}||{OTHER}", "1 0 0 0 1 0 1 0")
    page = visitor.get("/console/usage?by=tenant").text
    assert f'class="name">{OTHER}<' in page
    assert quote(OTHER) not in page


@pytest.mark.parametrize(
    ("query", "param", "message"),
    [
        ("from=today", "from", "from=&#39;today&#39; is not a date"),
        ("from=2026-01-01&to=2026-03-01", "from", "days, not 1 to 31"),
        ("by=colour", "by", "by=&#39;colour&#39; is not a list"),
        ("tenant=*", "tenant", "tenant=&#39;*&#39; is not"),
    ],
)
def test_an_invalid_day_sum_or_tenant_is_named(visitor: FlaskClient, query: str, param: str, message: str) -> None:
    page = visitor.get(f"/console/usage?{query}")
    assert (page.status_code, message in page.text) == (422, True)
    fault(visitor.get(f"/console/usage.csv?{query}"), 422, "invalid_value", param)


def test_of_many_rows_the_page_shows_the_first_and_the_csv_has_all(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    for number in range(210):
        use(redis_client, 1, f"t{number:03}||m", f"1 0 0 0 1 0 {number} {number}")
    page = visitor.get("/console/usage?by=tenant").text
    assert page.count('<th role="rowheader"') == 201
    assert "10 more rows are in the CSV" in page
    assert page.index(">t209<") < page.index(">t208<")
    assert len(visitor.get("/console/usage.csv?by=tenant").text.splitlines()) == 211


def test_the_audit_log_lists_changes_with_who_made_them_and_is_searched_page_by_page(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    assert "No operator has changed anything" in visitor.get("/console/audit").text
    for number in range(150):
        who = "ada" if number % 2 else "bob"
        record(redis_client, Actor(who, "192.0.2.7"), "tenant.set", f"tenant t{number}: weight=2.0")
    record(redis_client, Actor(ATTACK, "command line on host"), "key.add", "key 0123456789ab of tenant blue")
    first = visitor.get("/console/audit").text
    assert first.count('<th role="rowheader"') == 100
    assert ATTACK not in first
    for text in ("key.add", "192.0.2.7", "command line on host", "&lt;script&gt;", "tenant t149: weight=2.0"):
        assert text in first
    before = first.partition("before=")[2].partition('"')[0]
    second = visitor.get(f"/console/audit?before={before}").text
    assert second.count('<th role="rowheader"') == 51
    assert 'id="earlier"' not in second
    assert "tenant t0: " in second
    of_ada = visitor.get("/console/audit?q=ADA").text
    assert of_ada.count('<th role="rowheader"') == 75
    assert ">bob<" not in of_ada
    invalid = visitor.get("/console/audit?before=x")
    assert (invalid.status_code, "before=&#39;x&#39; is not the id of a record" in invalid.text) == (422, True)


def test_a_label_that_a_spreadsheet_would_compute_is_text_in_the_csv(
    visitor: FlaskClient, redis_client: redis.Redis
) -> None:
    formula = '=HYPERLINK("http://x","y")'
    use(redis_client, 0, f"blue|{formula}|+m", "1 0 0 0 1 0 1 0")
    rows = list(csv.DictReader(io.StringIO(visitor.get("/console/usage.csv?by=key,model").text)))
    assert [(row["key"], row["model"]) for row in rows] == [(f"'{formula}", "'+m")]


@pytest.mark.parametrize("before", ["0-0", f"{2**64}-0", f"1-{2**64}"])
def test_the_id_of_a_record_that_cannot_exist_is_an_error_that_quotes_it(visitor: FlaskClient, before: str) -> None:
    answer = visitor.get("/console/audit", query_string={"before": before})
    assert answer.status_code == 422
    assert f"before=&#39;{before}&#39;" in answer.text


def test_the_list_of_jobs_shows_a_job_with_spoiled_times(visitor: FlaskClient, store: Store) -> None:
    heartbeat(store)
    job_id = admitted(store, a_job("blue"))
    store.client.zadd(keys.recent_jobs(), {job_id: 999_999_999_999_999}, xx=True)
    answer = visitor.get("/console/jobs")
    assert answer.status_code == 200
    assert "9999-12-31 23:59:59" in answer.text


@pytest.mark.parametrize("spoiled", ["9" * 5_000, "9" * 15, "soon"])
def test_the_page_of_a_job_opens_although_a_number_of_its_record_is_spoiled(
    visitor: FlaskClient, store: Store, spoiled: str
) -> None:
    heartbeat(store)
    job_id = admitted(store, a_job("blue"))
    fields = ("attempts", "started_ms", "ended_ms")
    store.client.hset(keys.rq_job(job_id), mapping={f"penstock_{name}": spoiled for name in fields})
    assert visitor.get(f"/console/jobs/{job_id}").status_code == 200

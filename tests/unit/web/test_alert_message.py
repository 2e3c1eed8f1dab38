"""The messages that tell alerts."""

import json

from shared.alerts.conditions import Condition, finding
from shared.alerts.incidents import MAX_OPEN, Incidents, Line
from web.webhooks.alert_message import MAX_LINES, message_id, slack_body, standard_body

T = 1_700_000_000_250


def lines_of(*names: str) -> list[Line]:
    state = Incidents()
    state.note([finding(Condition.MODEL_NOT_SERVED, name, f"model {name} is not served") for name in names], T)
    return state.due(T, for_ms=0, repeat_ms=1)


def test_slack_finds_neither_mention_nor_link_in_a_name_of_a_client():
    body = json.loads(slack_body(lines_of("<!channel>&\n\u202eevil"), "door-1"))
    assert list(body) == ["text"]
    assert "<" not in body["text"]
    assert "&lt;!channel&gt;&amp;  evil" in body["text"]
    assert body["text"].count("\n") == 1


def test_a_standard_event_names_each_condition_and_where_it_is_explained():
    event = json.loads(standard_body("msg_alert_1", lines_of("m"), T, "door-1", more=2))
    assert (event["id"], event["type"], event["timestamp"]) == (
        "msg_alert_1",
        "alert.firing",
        "2023-11-14T22:13:20.250+00:00",
    )
    assert event["data"] == {
        "sender": "door-1",
        "more": 2,
        "conditions": [
            {
                "status": "firing",
                "condition": "model_not_served",
                "subject": "m",
                "text": "model m is not served",
                "since": "2023-11-14T22:13:20.250+00:00",
                "docs": "docs/alerts.md#model_not_served",
            }
        ],
    }
    assert json.loads(standard_body("msg_test_1", [], T, "door-1"))["type"] == "alert.test"


def test_the_longest_message_is_small():
    lines = lines_of(*(f"{i}{'é<' * 999}" for i in range(MAX_OPEN)))[:MAX_LINES]
    assert len(lines) == MAX_LINES
    assert len(standard_body("m", lines, T, "h")) < 40_000
    assert len(json.loads(slack_body(lines, "h"))["text"]) < 40_000


def test_a_message_keeps_its_id_while_the_same_is_to_be_told():
    assert message_id(lines_of("m")) == message_id(lines_of("m"))
    assert message_id(lines_of("m")) != message_id(lines_of("n"))

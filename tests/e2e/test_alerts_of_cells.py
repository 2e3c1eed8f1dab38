"""The alerts of a door over several cells: each cell is judged, and its name is in what the receiver is told."""

from tests.support.alerts import dead_model, receiver, told
from tests.support.cells_door import cells_door
from tests.support.door import serve
from tests.support.ports import free_port
from tests.support.receiver import SECRET
from web.webhooks.alerter import Alerter

__all__ = ["receiver"]


def test_the_alerts_of_two_cells_and_of_one_that_is_away_name_their_cells(
    store,
    settings,
    store_url,
    tmp_path,
    receiver,
):
    alerts = {"alert_url": receiver.url, "alert_format": "standard", "alert_secret": SECRET, "alert_for_s": 0}
    urls = {"b": f"redis://127.0.0.1:{free_port()}"}
    with cells_door(store, settings, store_url, urls=urls, state_dir=str(tmp_path), **alerts) as door:
        serve(store)
        dead_model(door.stores["c"])
        alerters = [Alerter(context) for context in door.context.cells.all()]
        for each in alerters:
            each.one_pass()
            each.one_pass()
        assert sorted(told(receiver)) == [("firing", "model_not_served"), ("firing", "store_away")]
        lines = [one for got in receiver.received for one in got.event["data"]["conditions"]]
        texts = {one["condition"]: (one["subject"], one["text"]) for one in lines}
        assert texts["store_away"][1].startswith("cell b: for the door on ")
        assert texts["model_not_served"][0].startswith("c ")
        assert texts["model_not_served"][1].startswith("cell c: model ")

"""Tests ids with cells, the form of the directory of cells, where it puts tenants, and credentials in its URLs."""

import re
import secrets
import stat
import uuid

import pytest

from shared.cells.directory import MAX_CELLS, CellRecord, Directory, Placement, parse
from shared.cells.ids import cell_of_id, id_in_cell, is_cell_name
from shared.cells.opening import remember, remembered, with_credentials, without_credentials
from shared.cells.placement import tenant_cells
from shared.cells.stored_ids import cell_of_stored_id, digits_of, prefix_in_cell
from shared.errors import ConfigError
from shared.jobs.job import new_job_id
from shared.settings.settings import load


def a_cell(name: str = "c1", **changes) -> CellRecord:
    return CellRecord(**({"name": name, "url": f"redis://{name}:6379"} | changes))


def a_directory(*cells: CellRecord, **changes) -> Directory:
    return Directory(**({"version": 1, "cells": {cell.name: cell for cell in cells}} | changes))


@pytest.mark.parametrize("cell", ["c1", "a", "0", "x" * 16])
@pytest.mark.parametrize("raw_id", ["-" * 22, "c1-" + "a" * 19, "0" * 22, "0123456789abcdef" * 2])
def test_the_cell_of_an_id_is_read_from_it_whatever_the_rest_is(cell, raw_id):
    assert cell_of_id(id_in_cell(cell, raw_id)) == cell


def test_no_id_of_the_default_cell_is_mistaken_for_one_with_a_cell():
    ids = [new_job_id() for _ in range(2_000)] + [uuid.uuid4().hex, "c1-" + "a" * 19, "a-" * 11, "-" * 22]
    assert {cell_of_id(id_in_cell("default", raw_id)) for raw_id in ids} == {"default"}


@pytest.mark.parametrize(
    "text", ["", "-", "c1-", "c1-short", f"C1-{'a' * 22}", f"c_1-{'a' * 22}", f"chatcmpl-{'a' * 22}", f"c1-{'é' * 22}"]
)
def test_other_texts_name_no_cell(text):
    assert cell_of_id(text) == "default"


@pytest.mark.parametrize("cell", ["default", "c1", "0", "f" * 16])
@pytest.mark.parametrize(("prefix", "length"), [("file-", 29), ("batch_", 30)])
def test_the_cell_of_a_file_or_a_batch_is_read_from_its_id(prefix, length, cell):
    digits = "01a2b3c4d5e6" * 2
    stored_id = prefix_in_cell(prefix, cell) + digits
    assert (cell_of_stored_id(stored_id), digits_of(stored_id)) == (cell, digits)
    assert (len(stored_id) == length) == (cell == "default")
    assert cell_of_id(stored_id) == "default"


@pytest.mark.parametrize(
    "text", ["", "file-b-", f"file-B-{'0' * 24}", f"file-b-{'0' * 23}", f"batch_b-{'0' * 24}", f"file-file-{'0' * 24}"]
)
def test_other_texts_name_no_cell_of_a_file_or_a_batch(text):
    assert cell_of_stored_id(text) == "default"


@pytest.mark.parametrize("name", ["", "C1", "a-b", "a.b", "x" * 17, "a\n", "é", "file", "chatcmpl"])
def test_a_cell_s_name_is_lower_case_letters_and_digits_and_no_word_of_other_ids(name):
    assert not is_cell_name(name)
    with pytest.raises(ConfigError, match="cell="):
        a_cell(name, url="redis://h")


def test_a_directory_is_read_from_the_fields_that_it_was_written_to():
    written = a_directory(
        a_cell("default", prefix="{c7}:", weight=2.5, region="eu-1"),
        a_cell("c2", state="draining", url="rediss://u:p@h:1/2?ssl_cert_reqs=none"),
        tenants={"blue": Placement(("c2", "default")), "red": Placement(spread=2)},
        spread=2,
        changed_ms=5,
    )
    assert parse(written.dump()) == written
    assert parse(written.dump()).stamp == written.stamp


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"cell|c1": "no JSON"}, "cell|c1='no JSON'"),
        ({"cell|c1": "[" * 100_000}, "not a JSON object"),
        ({"cell|c1": '{"url": 5}'}, "url=5 of cell 'c1'"),
        ({"cell|c1": '{"url": "http://x"}'}, "url='http://x' of cell 'c1'"),
        ({"cell|c1": '{"url": "redis://[::1"}'}, "url='redis://[::1' of cell 'c1'"),
        ({"cell|c1": '{"url": "redis://u:secret@x y\\n"}'}, "u:***@x y"),
        ({"cell|c1": '{"url": "redis://h", "weight": 0}'}, "weight=0.0 of cell 'c1'"),
        ({"cell|c1": '{"url": "redis://h", "weight": NaN}'}, "weight=nan of cell 'c1'"),
        ({"cell|c1": '{"url": "redis://h", "state": "x"}'}, "state='x' of cell 'c1'"),
        ({"cell|c1": '{"url": "redis://h", "prefix": "x"}'}, "cell 'c1': prefix='x' must end"),
        ({"cell|c1": '{"url": "redis+cluster://h"}'}, "prefix='' has no hash tag"),
        ({"cell|c1": '{"url": "redis://h", "region": "a b"}'}, "region='a b' of cell 'c1'"),
        ({"cell|A": '{"url": "redis://h"}'}, "cell='A'"),
        ({"cell|c2": '{"url": "redis://c1:6379"}'}, "cells 'c1' and 'c2' have the same url"),
        ({"tenant|blue": '{"cells": "c1"}'}, "cells='c1' of tenant|blue"),
        ({"tenant|blue": '{"cells": ["c9"]}'}, "cells='c9' of tenant 'blue'"),
        ({"tenant|blue": '{"cells": ["c1", "c1"]}'}, "names a cell twice"),
        ({"tenant|blue": '{"spread": 0}'}, "spread=0"),
        ({"tenant|blue": '{"spread": "2"}'}, "spread='2' of tenant|blue"),
        ({"tenant|a b": "{}"}, "tenant='a b'"),
        ({"spread": "65"}, "spread=65"),
        ({"spread": "x"}, "spread='x'"),
        ({"version": ""}, "version=''"),
        ({"version": "9" * 400}, "version='999"),
        ({"changed_ms": "-1"}, "changed_ms='-1'"),
    ],
)
def test_an_error_names_the_field_and_its_value_and_no_password(changes, named):
    fields = a_directory(a_cell()).dump() | changes
    with pytest.raises(ConfigError) as error:
        parse(fields)
    assert named in str(error.value)
    assert "secret" not in str(error.value)


def test_a_directory_has_a_bound_on_its_cells():
    with pytest.raises(ConfigError, match="cells=65 are more than the 64"):
        a_directory(*(a_cell(f"c{i}") for i in range(MAX_CELLS + 1)))


def test_fields_of_a_newer_version_are_ignored():
    fields = a_directory(a_cell()).dump()
    fields |= {"cell|c1": fields["cell|c1"].replace("{", '{"new":1,', 1), "new": "1"}
    assert parse(fields) == a_directory(a_cell())


def test_a_later_version_is_newer_and_two_of_one_version_have_an_order():
    first = a_directory(a_cell())
    later = first.changed(at_ms=0, spread=2)
    other = first.changed(at_ms=0, spread=3)
    assert first.stamp < later.stamp
    assert later.stamp != other.stamp


def test_a_pinned_tenant_has_its_cells_in_order_without_those_that_drain():
    directory = a_directory(
        a_cell("c1"),
        a_cell("c2"),
        a_cell("c3", state="draining"),
        tenants={
            "two": Placement(("c2", "c1")),
            "one": Placement(("c2", "c1"), spread=1),
            "drained": Placement(("c3", "c2")),
            "none": Placement(("c3",)),
        },
    )
    placed = {tenant: tenant_cells(directory, tenant) for tenant in directory.tenants}
    assert placed == {"two": ("c2", "c1"), "one": ("c2",), "drained": ("c2",), "none": ()}


def test_a_tenant_has_as_many_cells_as_it_or_the_directory_spreads_over():
    directory = a_directory(*(a_cell(f"c{i}") for i in range(5)), tenants={"wide": Placement(spread=9)}, spread=2)
    assert len(tenant_cells(directory, "blue")) == 2
    assert sorted(tenant_cells(directory, "wide")) == ["c0", "c1", "c2", "c3", "c4"]
    assert tenant_cells(directory, "blue") == tenant_cells(directory.changed(at_ms=1, spread=5), "blue")[:2]


def test_cells_of_the_door_s_region_come_first_and_the_others_follow():
    directory = a_directory(a_cell("c1", region="us"), a_cell("c2", region="eu"), a_cell("c3", region="us"), spread=3)
    for number in range(20):
        cells = tenant_cells(directory, f"t{number}", regions=["eu"])
        assert cells[0] == "c2"
        assert cells[1:] == tuple(c for c in tenant_cells(directory, f"t{number}") if c != "c2")
        assert set(tenant_cells(directory, f"t{number}", regions=["us"])[:2]) == {"c1", "c3"}


def test_places_are_the_same_in_every_process_and_version():
    """Doors of two versions must put a tenant into the same cell."""
    directory = a_directory(a_cell("c1"), a_cell("c2", weight=2), a_cell("c3"), spread=3)
    placed = {tenant: tenant_cells(directory, tenant) for tenant in ("blue", "green", "red")}
    assert placed == {"blue": ("c2", "c3", "c1"), "green": ("c3", "c2", "c1"), "red": ("c2", "c3", "c1")}


@pytest.mark.parametrize(
    ("url", "store_url", "opened"),
    [
        ("redis://c2:1/3", "redis://u:p%40@c1", "redis://u:p%40@c2:1/3"),
        ("redis://me@c2", "redis://u:p@c1", "redis://me@c2"),
        ("redis://c2?password=x", "redis://u:p@c1", "redis://c2?password=x"),
        ("redis://c2", "redis://c1", "redis://c2"),
        (
            "rediss://c2?ssl_cert_reqs=none",
            "redis://c1?username=u&password=p",
            "rediss://c2?ssl_cert_reqs=none&username=u&password=p",
        ),
        ("redis+cluster://a:1,b:2", "redis://u:p@c1", "redis+cluster://u:p@a:1,b:2"),
        ("redis+sentinel://a:1,b:2/main/0", "redis://:p@c1", "redis+sentinel://:p@a:1,b:2/main/0"),
        ("unix:///a/b.sock?db=2", "redis://u:p@c1", "unix://u:p@/a/b.sock?db=2"),
        ("unix:///a/b.sock", "unix:///c.sock", "unix:///a/b.sock"),
        (
            "redis+sentinel://a:1/main",
            "redis+sentinel://u:p@b:1/main?sentinel_password=s",
            "redis+sentinel://u:p@a:1/main?sentinel_password=s",
        ),
        ("redis://u@c2", "redis+sentinel://b:1/main?sentinel_password=s", "redis://u@c2"),
    ],
)
def test_a_cell_s_url_without_a_user_gets_that_of_the_store_s_url(url, store_url, opened):
    assert with_credentials(url, store_url) == opened


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("redis://u:p@c1:1/2", "redis://c1:1/2"),
        ("valkey+cluster://:p@a:1,b:2", "redis+cluster://a:1,b:2"),
        ("unix:///a/b.sock?db=2&password=x", "unix:///a/b.sock?db=2"),
        ("unix://u:p@/a/b.sock", "unix:///a/b.sock"),
        ("redis+sentinel://:p@a:1/main?sentinel_password=s&ssl=true", "redis+sentinel://a:1/main?ssl=true"),
    ],
)
def test_a_url_loses_its_user_and_password(url, stored):
    assert without_credentials(url) == stored


def test_the_state_folder_keeps_the_newest_directory_of_one_store_for_its_user_only(tmp_path):
    def settings(url):
        return load(environ={"PENSTOCK_STATE_DIR": str(tmp_path / "state"), "REDIS_URL": url}, dotenv=None)

    own = settings("redis://u:first@c1:1")
    old = a_directory(a_cell())
    new = old.changed(at_ms=9, spread=2)
    assert remembered(own) is None
    for directory in (old, new, old):
        remember(own, directory)
    assert remembered(own) == new
    assert remembered(settings("redis://u:second@c1:1")) == new
    assert remembered(settings("redis://another:1")) is None
    file = tmp_path / "state" / "cells.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text(secrets.token_hex(8))
    assert remembered(own) is None


def test_regions_are_preferred_in_the_order_of_the_door():
    regions = ("us", "eu", "ap", "eu")
    directory = a_directory(*(a_cell(f"c{i}", region=region) for i, region in enumerate(regions)), spread=4)
    for number in range(20):
        cells = tenant_cells(directory, f"t{number}", regions=["eu", "us", "eu"])
        assert [directory.cells[cell].region for cell in cells] == ["eu", "eu", "us", "ap"]


def test_a_tenant_that_must_stay_in_regions_has_only_their_cells_at_every_door():
    cells = (a_cell("c1", region="us"), a_cell("c2", region="eu"), a_cell("c3", region="eu", state="draining"))
    tenants = {"kept": Placement(regions=("eu",)), "both": Placement(("c1", "c2"), regions=("eu",))}
    directory = a_directory(*cells, tenants=tenants | {"none": Placement(regions=("ap",))}, spread=3)
    assert parse(directory.dump()) == directory
    for regions in ((), ("us",)):
        placed = [tenant_cells(directory, tenant, regions=regions) for tenant in ("kept", "both", "none")]
        assert placed == [("c2",), ("c2",), ()]


@pytest.mark.parametrize(
    ("regions", "expected"),
    [(("a b",), "region='a b' of a placement is not"), (("",), "region='' of a placement is not")],
)
def test_a_region_that_is_no_name_is_refused(regions, expected):
    with pytest.raises(ConfigError, match=re.escape(expected)):
        Placement(regions=regions)

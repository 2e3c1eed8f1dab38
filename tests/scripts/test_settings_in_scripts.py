"""Tests that the scripts know the defaults and ranges of the system-wide settings."""

import re
from pathlib import Path

import pytest

from shared.settings.settings import SETTINGS, SYSTEM_WIDE

LUA = Path(__file__).parents[2] / "shared" / "lua"


def bounds() -> dict[str, tuple[str, str, str]]:
    """Return the default, the lowest and the highest value of each numeric setting in lib/base/settings.lua."""
    text = (LUA / "lib" / "base" / "settings.lua").read_text()
    call = r"return (?:number|integer_setting)\(stored, (\S+), (\S+), (\S+)\)"
    found = re.findall(rf"name == '(\w+)' then\n    {call}", text)
    return {name: (default, low, high) for name, default, low, high in found}


@pytest.mark.parametrize("name", sorted(set(bounds()) & set(SYSTEM_WIDE)))
def test_a_number_has_the_default_and_the_range_of_its_setting(name):
    default, low, high = bounds()[name]
    setting = SETTINGS[name]
    assert (float(low), float(high)) == setting.bounds
    assert default == "nil" if setting.auto else float(default) == setting.default


def test_every_numeric_setting_that_a_script_reads_has_a_range():
    text = "".join(path.read_text() for path in LUA.rglob("*.lua"))
    read = {
        name
        for call in re.findall(r"read_(?:settings|table)\(([^)]*)\)", text)
        for name in re.findall(r"'(\w+)'", call)
    }
    numeric = {name for name in read if name in SETTINGS and SETTINGS[name].bounds}
    assert numeric <= set(bounds())
    assert numeric

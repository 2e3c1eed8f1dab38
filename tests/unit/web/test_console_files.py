"""Tests the files that the console's pages load: those of others are the listed ones, and colours can be told apart."""

import hashlib
import re
import tomllib
from itertools import product
from pathlib import Path

import pytest

from web.console.panels import PANELS

WEB = Path(__file__).parents[3] / "web"
VENDOR = WEB / "static" / "vendor"
LISTED = tomllib.loads((VENDOR / "VERSIONS.toml").read_text())
TEMPLATES = sorted((WEB / "templates" / "console").glob("*.html"))
STYLE = (WEB / "static" / "console" / "console.css").read_text()


def test_the_programs_of_others_are_those_of_the_list_each_with_its_licence():
    wanted = {name: digest for one in LISTED.values() for name, digest in one["sha256"].items()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del found["VERSIONS.toml"]
    assert found == wanted
    assert all(any(name.endswith(".LICENSE") for name in one["sha256"]) for one in LISTED.values())


def test_no_page_has_a_script_a_style_or_a_handler_inside_and_none_names_another_host():
    assert len(TEMPLATES) > len(PANELS)
    for path in TEMPLATES:
        text = path.read_text()
        assert not re.search(r"<style|<script(?! src=\"/static/)|\sstyle=|\son[a-z]+=|hx-on|://|javascript:", text), (
            path
        )
    scripts = [path.read_text() for path in (WEB / "static" / "console").glob("*.js")]
    assert len(scripts) >= 3
    assert not re.search(r"\beval\(|innerHTML\s*=|new Function|https?://", "".join(scripts))


def test_values_are_inserted_unescaped_only_where_a_panel_was_rendered_before():
    unescaped = [found for path in TEMPLATES for found in re.findall(r"{{ ([^}]*)\|safe[^}]*}}", path.read_text())]
    assert {re.split(r"[\[ ]", one)[0] for one in unescaped} == {"panels", "facts", "figures", "running"}


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def colours(scheme: str) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    assert len(blocks) == 2
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[0 if scheme == "light" else 1]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_have_the_contrast_of_wcag_aa(scheme):
    colour = colours(scheme)
    pairs = [*product(("text", "muted", "accent", "good", "warn", "bad"), ("bg", "panel", "soft"))]
    pairs += [("on-accent", "accent"), ("good", "good-bg"), ("warn", "warn-bg"), ("bad", "bad-bg")]
    assert {
        pair: contrast(colour[pair[0]], colour[pair[1]]) for pair in pairs if contrast(*map(colour.get, pair)) < 4.5
    } == {}
    # The borders of controls.
    assert contrast(colour["control"], colour["panel"]) >= 3
    assert contrast(colour["control"], colour["bg"]) >= 3


def test_both_schemes_have_the_same_colours():
    assert colours("light").keys() == colours("dark").keys()


def test_the_pictures_of_the_docs_are_small():
    pictures = sorted((WEB.parent / "docs").glob("*.png"))
    assert {path.stem for path in pictures} >= {"console-light", "console-dark", "console-phone"}
    assert {path.name: path.stat().st_size for path in pictures if path.stat().st_size > 150_000} == {}

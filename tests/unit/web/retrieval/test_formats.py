"""Documents of each format become plain text, and what cannot be read is named."""

import codecs
import contextlib
import json

import pytest

from tests.support.pdf import pdf, pdf_of_pages, shown
from web.retrieval.formats.decoding import clean, decode, find_encoding
from web.retrieval.formats.documents import Format, UnreadableDocument, format_of
from web.retrieval.formats.html_text import declared_encoding, html_text
from web.retrieval.formats.json_text import json_text
from web.retrieval.formats.pdf_text import load_pypdf, pdf_text
from web.retrieval.formats.text import read_text

PAGE = """<!DOCTYPE html>
<html><head><title>Opening
 hours</title><style>p { color: red }</style><script>if (a < b) alert("</p>")</script></head>
<body><h1>Opening hours</h1><p>We are&nbsp;open from 9 &ndash; 17 o&#39;clock,<br>except on <b>Sun</b>days.
<h2>Prices</h2>
<ul><li>Adults: 5&euro;<li><p>Children: free</p></ul>
<table><tr><th>day</th><th>hours</th></tr><tr><td>Monday</td><td>9 to 17</td></tr></table>
<svg><title>drawn</title><svg></svg><text>hidden</text></svg><script/>
<pre>
def open():
    return True
</pre><template>unused</template>
<p>The end.</body></html>"""


@pytest.mark.parametrize(
    ("content_type", "name", "kind", "charset"),
    [
        ("text/plain", "notes.txt", Format.TEXT, None),
        ("text/plain; charset=ISO-8859-1", "notes", Format.TEXT, "ISO-8859-1"),
        ('text/markdown;charset="utf-8"', "a", Format.TEXT, "utf-8"),
        ("application/octet-stream", "C:\\docs\\Guide.PDF", Format.PDF, None),
        ("text/plain", "page.htm", Format.HTML, None),
        ("", "data.jsonl", Format.JSON_LINES, None),
        ("application/vnd.api+json", "data", Format.JSON, None),
        ("text/html", "report.pdf", Format.HTML, None),
        ("text/csv", "table", Format.TEXT, None),
        ("application/xml", "feed", Format.TEXT, None),
        ("text/plain", "no-ending", Format.TEXT, None),
    ],
)
def test_the_format_follows_from_the_type_and_else_from_the_name(
    content_type: str, name: str, kind: Format, charset: str | None
) -> None:
    assert format_of(content_type, name) == (kind, charset)


@pytest.mark.parametrize(
    ("content_type", "name", "message"),
    [
        ("image/png", "a.png", "'image/png' cannot be read"),
        ("application/octet-stream", "a.docx", "'a.docx' ends with none of: .c "),
        ("", "", "content type is ''"),
        ("application/zip", "a.txt", "'application/zip' cannot be read"),
    ],
)
def test_an_unknown_format_is_named(content_type: str, name: str, message: str) -> None:
    with pytest.raises(UnreadableDocument, match=message):
        format_of(content_type, name)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_the_mark_of_a_unicode_text_names_its_encoding(encoding: str) -> None:
    assert decode("Ünïcode 漢".encode(encoding), None) == "Ünïcode 漢"
    assert decode("Ünïcode 漢".encode(encoding), "cp1252") == "Ünïcode 漢"


def test_an_encoding_that_is_named_is_used() -> None:
    assert decode("Grüße \u2013 €".encode("cp1252"), find_encoding("latin1")) == "Grüße \u2013 €"
    assert decode("漢字".encode("shift_jis"), find_encoding("Shift_JIS")) == "漢字"
    assert decode("abc".encode("utf-16-le"), find_encoding("UTF-16LE")) == "abc"


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (b"K\xf6ln", None, "not UTF-8: byte 1 is 0xf6; name the encoding in the content type"),
        (b"\x81\x82\xff", "shift_jis", "not SHIFT_JIS: byte "),
        (b"a\0b", None, "not text: byte 1 is 0"),
        (b"PK\x03\x04...", None, "is a zip file and not text"),
        (b"%PDF-1.7", None, "is a PDF file and not text"),
        (codecs.BOM_UTF16_LE + b"\x00\xd8", None, "not UTF-16-LE: byte 0"),
    ],
)
def test_bytes_that_are_not_the_text_they_claim_to_be_are_named(
    content: bytes, encoding: str | None, message: str
) -> None:
    with pytest.raises(UnreadableDocument, match=message):
        decode(content, encoding)


@pytest.mark.parametrize("name", ["klingon", "idna", "unicode_escape", "utf-7", "zip", "rot13", "a\0b", ""])
def test_an_encoding_that_is_unknown_or_not_of_text_is_named(name: str) -> None:
    with pytest.raises(UnreadableDocument, match=r"encoding .* is not known"):
        find_encoding(name)


def test_control_characters_and_halves_of_pairs_are_replaced() -> None:
    assert clean("a\r\nb\rc\0d\x1b\tä\ud800") == "a\nb\nc\ufffdd\ufffd\tä?"


def test_a_page_becomes_markdown_without_its_scripts() -> None:
    assert html_text(PAGE) == (
        "# Opening hours\n\nWe are open from 9 \u2013 17 o'clock,\nexcept on Sundays.\n\n## Prices\n\n- Adults: 5€\n\n"
        "- Children: free\n\n| day | hours |\n\n| Monday | 9 to 17 |\n\n"
        "```\ndef open():\n    return True\n```\n\nThe end."
    )


def test_the_fence_of_a_block_is_longer_than_any_in_it() -> None:
    assert html_text("<pre>```\na</pre>") == "````\n```\na\n````"


@pytest.mark.parametrize("page", ["<p>a", "a</p></div></svg>", "<![CDATA[x]]>a", "&#0;&#x110000;a", "<td>a"])
def test_a_malformed_page_is_read_as_far_as_it_can_be(page: str) -> None:
    assert html_text(page).strip("\ufffd") == "a"


@pytest.mark.parametrize("page", ["", "<!a", "<p a='", "<![if", "<!DOCTYPE [", "&#", "</", "<svg><p>a", "<" * 2_000])
def test_a_broken_page_is_an_error_or_has_some_text(page: str) -> None:
    with contextlib.suppress(UnreadableDocument):
        assert isinstance(html_text(page), str)


def test_the_encoding_of_a_page_is_in_its_head() -> None:
    assert declared_encoding(b'<meta charset="windows-1251">') == "cp1251"
    assert declared_encoding(b"<META http-equiv=x content='text/html; charset=koi8-r'>") == "koi8-r"
    assert declared_encoding(b"<meta charset=utf-16>") == "utf-8"
    assert declared_encoding(b"<p>none</p>") is None


def test_the_values_of_json_are_lines_with_their_paths() -> None:
    value = {"name": "Ada", "tags": ["a", {"b": 1.50}, []], "on": True, "none": None, "": "empty"}
    lines = json_text(json.dumps(value), lines=False, max_chars=1000).splitlines()
    assert lines == ["name: Ada", "tags[0]: a", "tags[1].b: 1.5", "on: true", "empty"]
    assert json_text('"just text"', lines=False, max_chars=1000) == "just text\n"
    assert "9" * 9000 in json_text(f"[{'9' * 9000}]", lines=False, max_chars=10_000)


def test_each_line_of_json_lines_is_a_paragraph() -> None:
    assert json_text('{"a": "x"}\n\n{"a": "y"}\n', lines=True, max_chars=100) == "a: x\n\na: y\n"


@pytest.mark.parametrize(
    ("text", "lines", "message"),
    [
        ("{", False, "not JSON: Expecting property name .* line 1 column 2"),
        ('{"a": 1}\n{"a"', True, "line 2: the content is not JSON"),
        ("[" * 100_000, False, "nested too deeply"),
        (json.dumps({"key" * 60: ["x"] * 100}), False, "more than 1000 characters"),
    ],
)
def test_json_that_cannot_be_read_is_named(text: str, lines: bool, message: str) -> None:
    with pytest.raises(UnreadableDocument, match=message):
        json_text(text, lines=lines, max_chars=1000)


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b" \n ", Format.TEXT, "contains no text"),
        (b"<script>a</script>", Format.HTML, "contains no text"),
        ("ä".encode() * 501, Format.TEXT, "has 1002 bytes, and the most is 1000"),
    ],
)
def test_a_document_without_text_or_with_too_much_is_refused(content: bytes, kind: Format, message: str) -> None:
    with pytest.raises(UnreadableDocument, match=message):
        read_text(content, kind, None, 1000)


@pytest.fixture(scope="module")
def pypdf() -> None:
    pytest.importorskip("pypdf")
    load_pypdf()


@pytest.mark.usefixtures("pypdf")
class TestPdf:
    def test_each_page_is_a_paragraph(self) -> None:
        content = pdf_of_pages([shown("Opening hours (daily)"), b"", shown("9 \u2013 17 o'clock")], compressed=True)
        assert pdf_text(content, max_chars=1000) == "Opening hours (daily)\n\n9 \u2013 17 o'clock"

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"plain text", "does not begin with %PDF-"),
            (b"%PDF-1.4\n", "damaged, and cannot be read: "),
            (b"%PDF-1.4\n" + b"\xff" * 2000, "damaged, and cannot be read: "),
            (pdf_of_pages([b"", b""]), "no text on its 2 pages"),
            (pdf_of_pages([shown("x" * 600)] * 2), "first 2 pages has over 1000 characters"),
            (
                pdf_of_pages(
                    [shown("secret")],
                    trailer=b"/ID [<00><00>] /Encrypt << /Filter /Standard /V 1 /R 2 /P -1"
                    b" /O (12345678901234567890123456789012) /U (12345678901234567890123456789012) >>",
                ),
                "encrypted, and can be read only with its password",
            ),
            (
                pdf([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R] /Count 1 >>"]),
                "damaged|no text",
            ),
        ],
        ids=["not a PDF", "empty", "garbage", "pictures", "too long", "encrypted", "loop"],
    )
    def test_a_file_that_cannot_be_read_is_named(self, content: bytes, message: str) -> None:
        with pytest.raises(UnreadableDocument, match=message):
            pdf_text(content, max_chars=1000)

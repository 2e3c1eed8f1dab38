"""A document is read by a process of its own: it is confined, is killed at its limits, and does not stop the door."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.pdf import pdf_of_pages, shown
from web.retrieval import parsing
from web.retrieval.formats.documents import UnreadableDocument
from web.retrieval.parser_places import ParserPlaces, ParsersBusy
from web.retrieval.parsing import ParseLimits, parse_file

ROOT = Path(__file__).parents[4]
PLENTY_S = 200.0
#: A process has this much memory in the tests of its limit.
MEMORY = 100 << 20
#: Writes what a confined process can still do, in place of the text of a document.
CONFINED = """
import json, os, socket, sys
from web.retrieval.formats import child
asked = json.loads(sys.stdin.buffer.readline())
size = len(sys.stdin.buffer.read())
open_before = sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else []
child.bound(asked["cpu_s"], asked["memory_bytes"])
child.give_up_files()
def may(what):
    try:
        what()
    except (OSError, MemoryError) as error:
        return type(error).__name__
    return "yes"
seen = {
    "open": open_before, "size": size, "environ": sorted(os.environ),
    "connect": may(lambda: socket.socket()), "file": may(lambda: open("/dev/null")),
    "pipe": may(os.pipe), "memory": may(lambda: bytearray(asked["memory_bytes"])),
}
text = json.dumps(seen).encode()
sys.stdout.buffer.write(json.dumps({"bytes": len(text)}).encode() + b"\\n" + text)
"""


def read(content: bytes, content_type: str = "text/html", name: str = "", **limits: float) -> str:
    return parse_file(content, content_type, name, time.monotonic() + PLENTY_S, limits=ParseLimits(**limits))


def run(program: str, content: bytes = b"x", **limits: float) -> str:
    """Let a program read the document in place of the usual one."""
    until = time.monotonic() + PLENTY_S
    command = [sys.executable, "-c", program]
    return parse_file(content, "text/html", "", until, limits=ParseLimits(**limits), command=command)


def test_a_page_is_read_by_another_process() -> None:
    assert read("<h1>Grüße</h1>".encode("cp1252"), "text/html; charset=cp1252") == "# Grüße"


def test_a_large_text_is_read_by_another_process_and_a_small_one_here(monkeypatch: pytest.MonkeyPatch) -> None:
    large = "Grüße.\r\n" * 200_000
    assert read(large.encode(), "text/plain", "a.md") == large.replace("\r\n", "\n")
    monkeypatch.setattr(subprocess, "Popen", None)
    assert read(b"# Small\r\n", "text/plain", "a.md") == "# Small\n"
    with pytest.raises(UnreadableDocument, match="is not UTF-8: byte 0 is 0xff"):
        read(b"\xff", "text/plain")


def test_pdf_files_are_read_with_pypdf() -> None:
    pytest.importorskip("pypdf")
    assert read(pdf_of_pages([shown("Opening hours")]), "application/pdf") == "Opening hours"
    assert "pypdf" not in sys.modules or "pypdf" not in Path(parsing.__file__).read_text("utf-8")


def test_errors_of_the_process_reach_the_client() -> None:
    with pytest.raises(UnreadableDocument, match=r"content is not JSON: .* line 1 column 2"):
        read(b"{", "application/json")
    with pytest.raises(UnreadableDocument, match="'image/png' cannot be read"):
        read(b"", "image/png")
    with pytest.raises(UnreadableDocument, match="encoding 'klingon' is not known"):
        read(b"a", "text/html; charset=klingon")


def test_the_process_has_nothing_of_the_door_and_cannot_open_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET", "hidden")
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)  # noqa: FBT003 - it takes no keywords
    try:
        seen = json.loads(run(CONFINED, b"x" * 300_000, memory_bytes=256 << 20))
    finally:
        os.close(read_end)
        os.close(write_end)
    assert seen["size"] == 300_000
    if seen["open"]:
        # The last one is that of the folder itself.
        assert seen["open"] == ["0", "1", "2", "3"]
    assert "PENSTOCK_SECRET" not in seen["environ"]
    assert (seen["connect"], seen["file"], seen["pipe"]) == ("OSError",) * 3
    if sys.platform == "linux":
        assert seen["memory"] == "MemoryError"


@pytest.mark.parametrize(
    ("program", "message", "limits"),
    [
        ("while True: pass", "takes more than 0.5 s$", {"wall_s": 0.5}),
        (
            "from web.retrieval.formats.child import bound; bound(1, 1 << 30)\nwhile True: pass",
            "takes more than 1 s of CPU time",
            {"cpu_s": 1},
        ),
        ("import os\nwhile True: os.write(1, b'x' * 4096)", "has more than 1000 bytes", {"text_bytes": 1000}),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "may take too much memory", {}),
        ("import os; os._exit(3)", "ended with 3", {}),
        ("print('{\"bytes\": 4}')", "ended with 0", {}),
        ("import os, time; os.close(0); os.close(1); time.sleep(600)", "did not end", {}),
    ],
    ids=["stops", "computes", "writes", "killed", "fails", "cut off", "closes its output"],
)
def test_a_process_that_reaches_a_limit_is_ended_and_the_limit_named(
    program: str, message: str, limits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen
    if message == "did not end":
        # All others end, however long a busy machine takes for that.
        monkeypatch.setattr(parsing, "_END_S", 0.2)
    monkeypatch.setattr(
        subprocess, "Popen", lambda *given, **named: started.append(start(*given, **named)) or started[0]
    )
    with pytest.raises(UnreadableDocument, match=message):
        run(program, b"x" * 300_000, **limits)
    assert [process.returncode is not None for process in started] == [True]


def test_a_document_is_read_by_the_time_that_the_caller_names() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    # The process gets what is left of the time, on a busy machine nothing.
    with pytest.raises(UnreadableDocument, match=r"takes more than 0(\.[0-2][0-9]*)? s"):
        parse_file(b"x", "text/html", "", time.monotonic() + 0.2, command=command)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound the memory of a process")
def test_a_document_that_takes_too_much_memory_is_refused() -> None:
    with pytest.raises(UnreadableDocument, match="more than 100 MiB of memory"):
        read(b"[" + b'{"":0},' * 600_000 + b"0]", "application/json", memory_bytes=MEMORY)


def test_a_stream_that_unpacks_to_much_more_is_refused() -> None:
    pytest.importorskip("pypdf")
    bomb = pdf_of_pages([b" " * (76 << 20)], compressed=True)
    assert len(bomb) < 100_000
    with pytest.raises(UnreadableDocument, match=r"damaged|memory|no text"):
        read(bomb, "application/pdf", memory_bytes=MEMORY)


def test_elements_that_are_nested_deeply_are_read() -> None:
    assert read(b"<div>" * 60_000 + b"deep", "text/html") == "deep"


def test_only_some_processes_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "_places", ParserPlaces(1))
    with parsing._places.place("other", time.monotonic() + PLENTY_S), pytest.raises(ParsersBusy):
        parse_file(b"<p>a", "text/html", "", time.monotonic() + 0.05)
    assert read(b"<p>a") == "a"
    with pytest.raises(UnreadableDocument):
        run("import os; os._exit(3)")
    assert read(b"<p>a") == "a"


GEVENT = r"""
from web.server import gevent_patches
gevent_patches.apply()
import os, sys, time, gevent
from web.retrieval.parsing import ParseLimits, parse_file
def count():
    for _ in range(20):
        gevent.sleep(0.005)
    open(sys.argv[1], "w").close()
# The process answers only after the other greenlet has run.
program = "import os, sys, time\nsys.stdin.buffer.read()\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
program += "print('{\"bytes\": 0}')"
content = b"x" * 1_000_000
gevent.spawn(count)
until = time.monotonic() + 200
print(repr(parse_file(content, "text/html", "", until, command=[sys.executable, "-c", program, sys.argv[1]])))
print(parse_file(b"<p>text" + content, "text/html", "", until)[:5])
"""


def test_a_door_serves_others_while_it_waits(tmp_path: Path) -> None:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", GEVENT, str(tmp_path / "turns")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=200)
    assert (done.stdout, done.stderr) == ("''\ntextx\n", "")

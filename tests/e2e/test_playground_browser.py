"""The console's playground in a real browser: hostile text, what is copied, the stop button, and faults."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.browser import needs_browser
from tests.support.chromium import Browser, Page
from tests.support.console import ATTACK
from tests.support.painted import wait_for
from tests.support.served import Served, sim_served

pytestmark = needs_browser

#: Shells, Python, JSON and HTML treat each of these pieces specially.
HOSTILE = """it's "here" $(id) `id` $HOME \\n \\' !! %s {x} 🎉\u2028é\nEND_OF_REQUEST\n'''\t<b>&amp;"""


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A door whose tenant blue has its requests kept, so that a test can compare them."""
    folder = tmp_path_factory.mktemp("playground")
    with sim_served(folder, PENSTOCK_SIM_DECODE_TPS="20", PENSTOCK_WEB_WORKERS="1") as served:
        Tenants(served.stage.client).set("blue", TenantPolicy(run_again=True))
        yield served
        served.stage.assert_sound()


@pytest.fixture
def page(browser: Browser, door: Served) -> Iterator[Page]:
    """The playground, which must complain about nothing but answers that are errors, and ask no other host."""
    page = browser.page()
    page.look(1_280)
    page.open(f"{door.url}/console/playground?tenant=blue")
    page.wait_for_text("#panel-state", "Serving")
    yield page
    page.call("Page.close")
    assert [one for one in page.complaints if "Failed to load resource" not in one] == []
    assert page.hosts <= {f"127.0.0.1:{door.port}"}


def newest_request(door: Served) -> dict[str, Any]:
    """Return the request of the newest job, without the seed that the door chose for it."""
    newest = door.http.get("/v1/jobs?limit=1", headers={"X-Tenant": "blue"}).json()["data"][0]["id"]
    door.stage.ended(newest, timeout_s=60)
    kept = door.stage.store.kept_request(newest)
    assert kept is not None
    return {name: value for name, value in kept.items() if name not in {"seed", "request_id"}}


def copied(page: Page, name: str) -> str:
    """Return the program that is shown, once it is."""
    page.run("document.getElementById('code').open = true")
    wait_for(lambda: page.run(f"document.getElementById('{name}').textContent"), "the program")
    return str(page.run(f"document.getElementById('{name}').textContent"))


def test_an_answer_becomes_a_turn_and_the_copied_programs_send_exactly_the_same(page, door, tmp_path):
    page.write("[name=system]", HOSTILE)
    page.write(".turn textarea", HOSTILE)
    page.write("[name=max_tokens]", "3")
    page.write("[name=min_p]", "0.25")
    page.write("[name=stop]", "a'b\n\\n")
    page.call(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, modifiers=2
    )
    page.wait_for_text("#facts", "succeeded")
    assert page.run("[...document.querySelectorAll('.turn .role')].map(e => e.innerText)") == [
        "User",
        "Assistant",
        "User",
    ]
    assert len(page.run("document.querySelectorAll('.turn textarea')[1].value").split()) == 3
    asked = newest_request(door)
    assert [each["content"] for each in asked["messages"]] == [HOSTILE, HOSTILE]
    curl, python = copied(page, "curl"), copied(page, "python")
    assert "Bearer" not in curl + python
    with_key = page.run("playgroundCode.curl({}, { base: '/v1', tenant: 'blue', usesKeys: true })")
    assert '-H "Authorization: Bearer $PENSTOCK_API_KEY"' in with_key
    done = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.rstrip().endswith("data: [DONE]"), done.stdout + done.stderr
    assert newest_request(door) == asked
    program = tmp_path / "copied.py"
    program.write_text(python, encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 3
    assert newest_request(door) == asked
    # htmx itself keeps the path of the page.
    assert "here" not in page.run("JSON.stringify({ ...localStorage, ...sessionStorage })")


def test_the_stop_button_cancels_the_job_and_the_text_so_far_stays(page, door):
    page.write(".turn textarea", "go on")
    page.write("[name=max_tokens]", "2000")
    page.write("[name=temperature]", "9")
    page.click("#send")
    page.wait_for_text("#said", "temperature=9")
    assert page.run("document.activeElement.name") == "temperature"
    page.write("[name=temperature]", "0")
    page.click("#send")
    page.wait_for_text("#answer", " ")
    page.wait_for_text("#facts", "running")
    job_id = page.text("#job-link")
    page.click("#stop-answer")
    page.wait_for_text("#said", "Stopped")
    assert [view.state.value for view in door.stage.ended(job_id, timeout_s=60)] == ["canceled"]
    page.wait_for_text("#facts", "canceled")
    assert page.run("document.querySelectorAll('.turn textarea')[1].value")


def send_canned(page: Page, *frames: str, breaks: bool = False) -> None:
    """Send a turn, and give the page these frames in place of an answer of the door."""
    text = json.dumps("".join(frames))
    end = "c.error(new TypeError('lost'))" if breaks else "c.close()"
    page.run(
        f"(() => {{ const real = fetch; window.fetch = (...asked) => {{ window.fetch = real; return Promise.resolve("
        f"new Response(new ReadableStream({{ pull(c) {{ if (this.begun) {{ {end}; return; }} this.begun = true; "
        f"c.enqueue(new TextEncoder().encode({text})); }} }}), {{ status: 200 }})); }}; }})()"
    )
    page.write(".turn:last-child textarea", "hi")
    page.click("#send")


def delta(index: int = 0, finish_reason: str | None = None, **fields: Any) -> str:
    choice = {"index": index, "delta": fields, "finish_reason": finish_reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


def test_hostile_answers_are_text_and_long_ones_are_cut_and_calls_get_turns_for_their_results(page):
    hostile = f"{ATTACK}<img src=x onerror=alert(1)>"
    call = {"index": 0, "id": "c1", "function": {"name": hostile, "arguments": f'{{"a": "{ATTACK}"}}'}}
    send_canned(
        page,
        delta(reasoning_content=hostile),
        delta(content=hostile),
        delta(tool_calls=[call]),
        delta(1, content=hostile),
        delta(finish_reason="tool_calls"),
    )
    page.wait_for_text("#turns", f"Result of {hostile}")
    page.wait_for_text("#answer", hostile)
    assert page.text("#turns").count(hostile) >= 2
    assert page.run("document.querySelectorAll('main img, main script[src=x]').length") == 0
    page.write(".turn:last-child textarea", "noon")
    sent = json.loads(copied(page, "curl").split("END_OF_REQUEST'\n")[1].removesuffix("END_OF_REQUEST\n"))
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]
    assert sent["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "noon"}
    page.click("#clear")
    send_canned(page, delta(content="x" * 300_000), delta(finish_reason="stop"))
    page.wait_for_text("#said", "too long for this page")
    assert page.run("document.querySelectorAll('.turn textarea')[1].value.length") == 200_000


def test_a_stream_that_breaks_says_so_and_keeps_the_text(page):
    send_canned(page, 'event: job\ndata: {"id": "j1"}\n\n', delta(content="half"), breaks=True)
    page.wait_for_text("#said", "The connection broke before the end of the answer. The door cancels job j1.")
    assert page.run("document.querySelectorAll('.turn textarea')[1].value") == "half"
    assert not page.run("document.getElementById('send').disabled")


def test_turns_are_deleted_and_asked_again_on_each_screen(page):
    page.write("[name=max_tokens]", "2")
    page.write(".turn textarea", "first")
    page.click("#send")
    page.wait_for_text("#facts", "succeeded")
    page.click(".turn:first-child [data-act=again]")
    wait_for(lambda: page.run("document.querySelectorAll('.turn').length") == 3, "the second answer")
    page.click(".turn:first-child [data-act=delete]")
    assert page.run("document.querySelectorAll('.turn').length") == 2
    for width, dark in ((1_280, True), (390, False)):
        page.look(width, dark=dark)
        assert page.width_needed() == width


def test_while_the_store_is_away_a_turn_is_refused_with_the_reason(page, door):
    server: Any = door.stage.client.info("server")
    os.kill(server["process_id"], signal.SIGSTOP)
    try:
        page.write(".turn textarea", "hi")
        page.click("#send")
        page.wait_for_text("#said", "the store")
        page.wait_for_text("#panel-state", "store")
        page.open(f"{door.url}/console/playground?tenant=blue")
        page.wait_for_text("#why", "What to do")
    finally:
        os.kill(server["process_id"], signal.SIGCONT)
    page.wait_for_text("#panel-state", "Serving")
    page.write(".turn textarea", "hi")
    page.write("[name=max_tokens]", "2")

    def is_answered() -> bool:
        page.click("#send")
        return "succeeded" in page.text("#facts")

    wait_for(is_answered, "an answer")

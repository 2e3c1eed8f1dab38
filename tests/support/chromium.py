"""Drives a headless Chromium through its DevTools pipe: opens pages, presses keys, clicks, and takes pictures."""

import base64
import fcntl
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.browser import CHROMIUM
from tests.support.processes import wait_for

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)
#: Brings the element `e` into view, and returns its middle.
_MIDDLE_OF_E = (
    "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
    "return [r.x + r.width / 2, r.y + r.height / 2];"
)
#: How long an answer of the browser may take, in seconds; it is long, because machines can be slow.
_ANSWER_S = 180.0


class Page:
    """One tab, with what it has complained about and asked for since it was opened."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        #: Errors and warnings on the page's console, uncaught exceptions, and violations of the policy.
        self.complaints: list[str] = []
        #: The host and port of each request.
        self.hosts: set[str] = set()
        #: How often the browser asked for a password.
        self.questions = 0
        self._password = ""
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")
        # A tab in the background gets no keys.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result."""
        return self._browser.call(method, self._session, **params)

    def open(self, url: str) -> None:
        self.run("window.isLeft = true")
        self.call("Page.navigate", url=url)
        loaded = "!window.isLeft && document.readyState === 'complete'"
        wait_for(lambda: self.run(loaded), f"the page {url}", timeout_s=_ANSWER_S)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text of the first element that matches, "" if no element does."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait_for_text(self, selector: str, text: str) -> None:
        wait_for(lambda: text in self.text(selector), f"{text!r} in {selector}", timeout_s=_ANSWER_S)

    def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of an element, as a person does."""
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); {_MIDDLE_OF_E} }})()",
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def ask(self, selector: str) -> None:
        """Click a button until the page asks for a confirmation: a click misses what moves meanwhile."""
        is_open = "document.getElementById('confirm').open"

        def asked() -> bool:
            if not self.run(is_open):
                self.click(selector)
            return bool(self.run(is_open))

        wait_for(asked, f"the question of {selector}", timeout_s=_ANSWER_S)

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press and release a key, such as Tab (9) or Enter (13)."""
        named: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def write(self, selector: str, text: str) -> None:
        """Replace what is in a field by a text."""
        self.run(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus(); e.select(); }})()")
        self.call("Input.insertText", text=text)

    def sign_in(self, password: str) -> None:
        """Answer each question for a password, as a person does in the browser's own window."""
        self._password = password
        self.call("Fetch.enable", handleAuthRequests=True)

    def look(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Show the page on a screen of this size and colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def width_needed(self) -> int:
        """Return how wide the document is, in CSS pixels; more than the screen's width means horizontal scrolling."""
        return int(self.run("document.documentElement.scrollWidth"))

    def picture(self, path: Path, *, most_height: int = 2_400) -> None:
        """Write a picture of the page, from its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], most_height), "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Keep what an event of the protocol says; only the browser calls this."""
        if method == "Fetch.requestPaused":
            self._browser.send("Fetch.continueRequest", self._session, requestId=params["requestId"])
        elif method == "Fetch.authRequired":
            self.questions += 1
            answer = {"response": "ProvideCredentials", "username": "any", "password": self._password}
            self._browser.send(
                "Fetch.continueWithAuth", self._session, requestId=params["requestId"], authChallengeResponse=answer
            )
        elif method == "Network.requestWillBeSent" and params["request"]["url"].startswith("http"):
            self.hosts.add(urlsplit(params["request"]["url"]).netloc)
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", params)))
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning"}:
            self.complaints.append(str([one.get("value", one.get("description")) for one in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Audits.issueAdded" and "contentSecurityPolicyIssueDetails" in params["issue"]["details"]:
            self.complaints.append(str(params["issue"]["details"]))


class Browser:
    """A running Chromium."""

    def __init__(self, folder: Path) -> None:
        low_read, self._commands = os.pipe()
        self._events, low_write = os.pipe()
        # Chromium reads commands from descriptor 3 and writes events to 4. The pipes' own descriptors are larger, so
        # that bash does not overwrite one before it has copied it.
        to_read, to_write = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (low_read, low_write))
        begin = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                begin,
                "chromium",
                str(CHROMIUM),
                *_FLAGS,
                f"--user-data-dir={folder / 'profile'}",
                "about:blank",
            ],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for one in (low_read, low_write, to_read, to_write):
            os.close(one)
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._lock, self._last_id = threading.Lock(), 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def page(self) -> Page:
        """Open a tab."""
        target = self.call("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page.__new__(Page)
        self._pages[session] = page
        page.complaints, page.hosts = [], set()
        page.__init__(self, session)  # type: ignore[misc]  # its events arrive while it is made
        return page

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        got = self.send(method, session, **params).get(timeout=_ANSWER_S)
        assert "error" not in got, (method, got["error"])
        return dict(got["result"])

    def send(self, method: str, session: str, **params: Any) -> "queue.SimpleQueue[dict[str, Any]]":
        """Send a command, and return the queue that will hold its answer."""
        with self._lock:
            self._last_id += 1
            number = self._last_id
            answer = self._answers[number] = queue.SimpleQueue()
            command = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
            os.write(self._commands, json.dumps(command).encode() + b"\0")
        return answer

    def _read(self) -> None:
        rest = b""
        while chunk := os.read(self._events, 1 << 20):
            *whole, rest = (rest + chunk).split(b"\0")
            for text in whole:
                message = json.loads(text)
                if "id" in message:
                    self._answers.pop(message["id"]).put(message)
                elif message.get("sessionId") in self._pages:
                    self._pages[message["sessionId"]].note(message["method"], message["params"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._commands)
        os.close(self._events)


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Run a browser with a new profile."""
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()

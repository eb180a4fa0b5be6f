"""A real Chromium, driven over the pipe of its DevTools protocol: no driver and no package are needed.

Each test has its own tab, with its own cookies and storage. What the browser reports as an error is kept, so a
test can say that there was none.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.process import CannotRun

PATIENCE_S = 60.0
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--password-store=basic",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


FAINT = """(() => {
  const parts = (text) => {
    const [one, two, three, alpha] = text.match(/[-\\d.e]+/g).map(Number);
    const unit = text.startsWith("color(") ? 255 : 1;
    return [one * unit, two * unit, three * unit, alpha ?? 1];
  };
  const over = (front, back) => back.map((each, index) => front[index] * front[3] + each * (1 - front[3]));
  const linear = (each) => (each / 255 <= 0.04045 ? each / 3294.6 : ((each / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const above = (node) => (node ? [...above(node.parentElement), node] : []);
  const behind = (node) =>
    above(node).reduce((back, each) => over(parts(getComputedStyle(each).backgroundColor), back), [255, 255, 255]);
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const isText = [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!isText || !node.checkVisibility() || node.matches(":disabled, :disabled *")) continue;
    const style = getComputedStyle(node);
    const back = behind(node);
    const colour = over(parts(node instanceof SVGElement ? style.fill : style.color), back);
    const [dark, bright] = [light(colour), light(back)].sort((one, other) => one - other);
    const ratio = (bright + 0.05) / (dark + 0.05);
    if (ratio < 4.5) found.push(`${node.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return found;
})()"""


class Chromium:
    """One browser process."""

    def __init__(self) -> None:
        program = shutil.which("chromium")
        if program is None:
            raise CannotRun("chromium is not installed (Debian: apt-get install chromium)")
        self._home = Path(tempfile.mkdtemp(prefix="headrace-chromium-"))
        reading, their_writing = os.pipe()
        their_reading, writing = os.pipe()
        # The browser reads from descriptor 3 and writes to 4.
        command = f'exec 3<&{their_reading} 4>&{their_writing}; exec {program} "$@"'
        self._child = subprocess.Popen(
            ["bash", "-c", command, "chromium", *ARGUMENTS, f"--user-data-dir={self._home}", "about:blank"],
            pass_fds=(their_reading, their_writing),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(their_reading)
        os.close(their_writing)
        self._writing = writing
        self._ids = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._changed = threading.Condition()
        self._ended = False
        threading.Thread(target=self._read, args=(reading,), daemon=True).start()

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as source:
            rest = b""
            while data := source.read1(1 << 20):  # type: ignore[attr-defined]
                *messages, rest = (rest + data).split(b"\0")
                with self._changed:
                    for message in map(json.loads, messages):
                        if "id" in message:
                            self._answers[message["id"]] = message
                        else:
                            self._events[message.get("sessionId", "")].append(message)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def call(self, method: str, parameters: dict[str, Any] | None = None, session: str = "") -> dict[str, Any]:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        with self._changed:
            arrived = self._changed.wait_for(lambda: number in self._answers or self._ended, PATIENCE_S)
            assert arrived, f"chromium did not answer {method}"
            assert number in self._answers, f"chromium ended during {method}"
            answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def events(self, session: str) -> list[dict[str, Any]]:
        with self._changed:
            return list(self._events[session])

    @contextmanager
    def tab(self, *, dark: bool = False, width: int = 1360, height: int = 860) -> Iterator[Tab]:
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            tab.call(f"{domain}.enable")
        tab.resize(width, height)
        tab.theme(dark=dark)
        try:
            yield tab
        finally:
            self.call("Target.disposeBrowserContext", {"browserContextId": context})

    def close(self) -> None:
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._child.wait(PATIENCE_S)
        os.close(self._writing)
        shutil.rmtree(self._home, ignore_errors=True)


class Tab:
    """A tab, and what a person does with it."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session
        self._forgiven = 0

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.call(method, parameters, self._session)

    def open(self, url: str) -> None:
        self.call("Page.navigate", {"url": url})

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", metrics)

    def theme(self, *, dark: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", {"features": features})

    def value(self, expression: str) -> Any:
        """What an expression gives; a promise is waited for. An error of the page is one of the test."""
        answer = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true. A page that is being left has no objects; it is asked again."""
        deadline = time.monotonic() + PATIENCE_S
        seen: Any = None
        while time.monotonic() < deadline:
            try:
                seen = self.value(expression)
            except AssertionError as error:
                seen = error
            if seen not in (None, False, "", 0) and not isinstance(seen, AssertionError):
                return seen
            time.sleep(0.03)
        raise AssertionError(f"{expression} did not come about; last: {seen!r}; page: {self.text()[:2000]}")

    def text(self) -> str:
        return str(self.value("document.body ? document.body.innerText : ''"))

    def wait_for_text(self, text: str) -> None:
        self.wait(f"document.body && document.body.innerText.includes({json.dumps(text)})")

    def click(self, selector: str, text: str = "") -> None:
        """Click the first element that the selector finds, or the first of those with the text."""
        wanted = json.dumps(text)
        every = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found = f"{every}.find(e => e.textContent.includes({wanted}))"
        self.wait(f"Boolean({found})")
        self.value(f"{found}.click()")

    def fill(self, selector: str, text: str) -> None:
        self.wait(f"Boolean(document.querySelector({json.dumps(selector)}))")
        self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus();"
            f"e.value = {json.dumps(text)};"
            "for (const name of ['input', 'change']) e.dispatchEvent(new Event(name, {bubbles: true})) })()"
        )

    def press(self, key: str) -> None:
        text = key if len(key) == 1 else ""
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", "key": key, "text": text})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", "key": key})

    def type(self, text: str) -> None:
        self.call("Input.insertText", {"text": text})

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", {"format": "png"})["data"]))

    def faint(self) -> list[str]:
        """Texts that stand out too little from what is behind them: below 4.5 to 1, as WCAG counts it."""
        return [str(each) for each in self.value(FAINT)]

    def errors(self) -> list[str]:
        """What the browser reported: exceptions, errors of the console, breaches of the policy, failed requests."""
        found = []
        for event in self._browser.events(self._session)[self._forgiven :]:
            parameters = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                found.append(str(details.get("exception", {}).get("description") or details["text"]))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                found.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
                found.append(str(parameters["args"]))
        return found

    def forgive(self) -> None:
        """Errors up to here were what the test wanted to see."""
        self._forgiven = len(self._browser.events(self._session))

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [
            each["params"]["request"]["url"]
            for each in self._browser.events(self._session)
            if each["method"] == "Network.requestWillBeSent"
        ]

    def bytes_received(self) -> int:
        return sum(
            each["params"]["encodedDataLength"]
            for each in self._browser.events(self._session)
            if each["method"] == "Network.loadingFinished"
        )

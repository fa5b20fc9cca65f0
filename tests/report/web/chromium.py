"""A headless Chromium, driven through chromedriver's WebDriver protocol: pages, their console, and
every request that they make."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str | None:
    """Why there is no browser to test in; None when there is."""
    if not any(map(shutil.which, BROWSERS)):
        return "no Chromium here; on Debian: apt install chromium chromium-driver"
    return None if shutil.which("chromedriver") else "no chromedriver here; on Debian: apt install chromium-driver"


class WebDriverError(RuntimeError):
    """The browser did not do what it was asked."""


class Chromium:
    """A context manager. `width` in CSS pixels; `phone` has a touch screen of two pixels a CSS
    pixel. No name is resolved: whatever a page asks for elsewhere than on loopback fails, and is in
    `requests`."""

    def __init__(self, width: int = 1280, height: int = 900, *, phone: bool = False) -> None:
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._driver.stdout is not None
        port = next(line.split()[-1].rstrip(".") for line in self._driver.stdout if "successfully on port" in line)
        self._base = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        arguments += [f"--window-size={width},{height}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        options: dict[str, Any] = {"args": arguments, "binary": next(filter(None, map(shutil.which, BROWSERS)))}
        if phone:
            options["mobileEmulation"] = {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 2.0}}
        asked = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        try:
            session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": asked}})
        except BaseException:
            self._stop()
            raise
        self._session = f"/session/{session['sessionId']}"

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._ask("DELETE", self._session)
        finally:
            self._stop()

    def _stop(self) -> None:
        self._driver.terminate()
        self._driver.wait(10)
        assert self._driver.stdout is not None
        self._driver.stdout.close()

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise WebDriverError(json.load(error)["value"]["message"]) from None

    def open(self, url: str | Path) -> None:
        self._ask("POST", f"{self._session}/url", {"url": url.as_uri() if isinstance(url, Path) else url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script that returns one."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script: str, patience_s: float = 30.0) -> Any:
        """The value of the script as soon as it is truthy."""
        end_s = time.monotonic() + patience_s
        while not (value := self.run(script)):
            if time.monotonic() > end_s:
                raise WebDriverError(f"never true: {script}; the console says {self.console()}")
            time.sleep(0.05)
        return value

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of the Chrome DevTools protocol."""
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def console(self) -> list[str]:
        """What pages wrote to the console since the last call, errors of scripts and of their
        policy among it."""
        return [f"{e['level']}: {e['message']}" for e in self._log("browser")]

    def requests(self) -> list[str]:
        """Addresses that pages asked for since the last call, their own and the data in them not
        counted."""
        messages = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "chrome:", "about:", "blob:"))]

    def _log(self, kind: str) -> list[dict[str, Any]]:
        return list(self._ask("POST", f"{self._session}/se/log", {"type": kind}))


def show(browser: Chromium, page: str | Path) -> None:
    """Open a page of runs and draw all of it, also what is out of sight."""
    browser.console(), browser.requests()
    browser.open(page)
    browser.until("return document.documentElement.dataset.ready")
    browser.run("edgegossip.draw(() => true); return true")


def quiet(browser: Chromium, page: Path | None = None) -> None:
    """Nothing on the console, no request but for the page."""
    assert browser.console() == []
    assert set(browser.requests()) <= ({page.as_uri()} if page else set())

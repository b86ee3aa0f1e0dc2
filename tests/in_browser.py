"""Headless Chromium in a few words, for tests of the page."""

from __future__ import annotations

import time
from typing import Any

PHONE, LAPTOP = 390, 1280


def until(browser: Any, condition: str, *arguments: Any, seconds: float = 60) -> Any:
    """The value of a script once it is truthy."""
    deadline = time.monotonic() + seconds
    while not (value := browser.execute_script(f"return {condition}", *arguments)):
        assert time.monotonic() < deadline, f"never came: {condition}"
        time.sleep(0.05)
    return value


def settled(browser: Any) -> None:
    """Wait until the page shows the answer to what was typed last, not to a part of it."""
    until(browser, "document.getElementById('results').ariaBusy === 'false'")


def resize(browser: Any, width: int) -> None:
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def scheme(browser: Any, name: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": name}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
